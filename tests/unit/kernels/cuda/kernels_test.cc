// What cases of the conformance suite cannot show of the CUDA kernels: bad indices, GELU computed
// again, a skipped step, refused ops.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/cpu/registry.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/registry.h"
#include "kernels/cuda/workspace.h"
#include "tests/unit/kernels/cuda/plain_gemms.h"
#include "tests/unit/kernels/updated_weights.h"

namespace terrace::kernels::cuda {
namespace {

template <typename T>
TensorView View(std::vector<T>& values, DType dtype, std::vector<int64_t> sizes) {
  TensorView view;
  view.dtype = dtype;
  view.dims = static_cast<int>(sizes.size());
  for (size_t d = 0; d < sizes.size(); ++d) view.size[d] = sizes[d];
  view.row_stride = view.RowElements();
  view.data = values.data();
  return view;
}

// Runs the op; the fault word afterwards.
Fault RunOp(Op op, const OpAttrs& attrs, std::vector<TensorView> operands) {
  const std::vector<TensorShape> shapes(operands.begin(), operands.end());
  EXPECT_EQ(CheckShapes(op, attrs, shapes), "");
  std::vector<std::byte> workspace(WorkspaceBytes(op, attrs, shapes) + kScratchAlignment);
  const auto address = reinterpret_cast<uintptr_t>(workspace.data());
  const PlainGemms gemms(/*fuses=*/true);
  Fault fault = kNoFault;
  const Context context = {
      .gemms = &gemms,
      .faults = &fault,
      .workspace = workspace.data() + (kScratchAlignment - address % kScratchAlignment),
      .workspace_bytes = static_cast<int64_t>(workspace.size()) - kScratchAlignment};
  const Status status = Find(op)(attrs, operands, context);
  EXPECT_TRUE(status.ok()) << status.message;
  return fault;
}

TEST(CudaKernelsTest, TheFirstBadTokenIsNotedAndTakenForAbsent) {
  std::vector<int32_t> tokens = {1, 0, 5, -1, 2};
  std::vector<float> table = {1, 2, 3, 4, 5, 6}, x(10, 7);
  const Fault fault = RunOp(Op::kEmbedding, EmbeddingAttrs{},
                            {View(tokens, DType::kI32, {5}), View(table, DType::kF32, {3, 2}),
                             TensorView(), View(x, DType::kF32, {5, 2}), TensorView()});
  EXPECT_EQ(DescribeFault(fault).message,
            "embedding: the index at position 2 is outside its table");
  EXPECT_EQ(x, (std::vector<float>{3, 4, 1, 2, 0, 0, 0, 0, 5, 6}));

  std::vector<float> dtable(6, 1);
  EXPECT_NE(RunOp(Op::kEmbeddingGrad, EmbeddingAttrs{},
                  {View(tokens, DType::kI32, {5}), View(x, DType::kF32, {5, 2}),
                   View(dtable, DType::kF32, {3, 2}), TensorView(), TensorView()}),
            kNoFault);
  EXPECT_EQ(dtable, (std::vector<float>{2, 3, 4, 5, 6, 7}));
}

TEST(CudaKernelsTest, ATargetBeyondTheVocabularyIsNotedAndLeavesNoLoss) {
  std::vector<float> hidden = {1, 2, 3, 4}, weight = {1, 0, 0, 1, 1, 1}, stats(2);
  std::vector<int32_t> targets = {0, 3};
  const Fault fault =
      RunOp(Op::kLmHeadLoss, LossAttrs{.chunk_rows = 1},
            {View(hidden, DType::kF32, {2, 2}), View(weight, DType::kF32, {3, 2}),
             View(targets, DType::kI32, {2}), View(stats, DType::kF32, {2}), TensorView()});
  EXPECT_EQ(DescribeFault(fault).message,
            "lm_head_loss: the index at position 1 is outside its table");
  EXPECT_NEAR(stats[0], 2.40760596, 1e-6) << "the first row's alone";
}

TEST(CudaKernelsTest, ATf32ProductReadsTenBitsOfItsOperands) {
  constexpr float kBeyond = 1 + 0x1p-11f;  // of the bits that TF32 has not
  std::vector<float> a = {kBeyond}, b = {3}, c = {0};
  const auto product = [&](MatmulPrecision precision) {
    RunOp(Op::kMatmul, MatmulAttrs{.precision = precision},
          {View(a, DType::kF32, {1, 1}), View(b, DType::kF32, {1, 1}), View(c, DType::kF32, {1, 1}),
           TensorView(), TensorView(), TensorView()});
    return c[0];
  };
  EXPECT_EQ(product(MatmulPrecision::kF32), 3 * kBeyond);
  EXPECT_EQ(product(MatmulPrecision::kTF32), 3);
}

TEST(CudaKernelsTest, GeluOfAKeptProductIsGeluOfWhatIsStored) {
  constexpr int64_t kM = 33, kN = 20, kK = 9;
  std::vector<float> a(kM * kK), b(kK * kN);
  for (size_t i = 0; i < a.size(); ++i) a[i] = 0.37f * static_cast<float>(i % 11) - 1.7f;
  for (size_t i = 0; i < b.size(); ++i) b[i] = 0.23f * static_cast<float>(i % 7) - 0.6f;
  std::vector<uint16_t> c(kM * kN), aux(kM * kN), again(kM * kN);
  RunOp(Op::kMatmul, MatmulAttrs{.epilogue = Epilogue::kGelu},
        {View(a, DType::kF32, {kM, kK}), View(b, DType::kF32, {kK, kN}),
         View(c, DType::kBF16, {kM, kN}), TensorView(), TensorView(),
         View(aux, DType::kBF16, {kM, kN})});
  RunOp(Op::kGelu, ActivationAttrs{},
        {View(aux, DType::kBF16, {kM, kN}), View(again, DType::kBF16, {kM, kN})});
  EXPECT_EQ(again, c);
}

TEST(CudaKernelsTest, ASkippedStepChangesNothing) {
  std::vector<float> grad(70, 1), param(70, 2), m(70, 3), v(70, 4), scale = {0, 1, 1, 1};
  std::vector<float> schedule = {0.1f, 0.1f, 0.1f, 0};
  RunOp(Op::kUpdate, UpdateAttrs{},
        {View(grad, DType::kF32, {70}), View(param, DType::kF32, {70}), View(m, DType::kF32, {70}),
         View(v, DType::kF32, {70}), View(scale, DType::kF32, {4}),
         View(schedule, DType::kF32, {4})});
  EXPECT_EQ(param, std::vector<float>(70, 2));
  EXPECT_EQ(m, std::vector<float>(70, 3));
  EXPECT_EQ(v, std::vector<float>(70, 4));
}

TEST(CudaKernelsTest, WeightsInBf16AreRoundedWithTheBitsOfTheirElements) {
  const auto backend = [](Op op, const OpAttrs& attrs, const std::vector<TensorView>& operands) {
    RunOp(op, attrs, operands);
    return Status{};
  };
  constexpr int64_t kElements = 22003;
  UpdatedWeights weights(kElements, PartsFor(0));
  weights.ExpectStepByTheRules(backend);
  UpdatedWeights shifted(kElements, PartsFor(0));  // no pack is a block of Philox
  shifted.SetParts(PartsFor(3));
  shifted.ExpectStepByTheRules(backend);
}

// With fused multiply-adds, that is: without them the CPU rounds once more.
TEST(CudaKernelsTest, WeightsInBf16AreThoseOfTheCpu) {
  if (!__builtin_cpu_supports("fma")) GTEST_SKIP() << "this CPU has no fused multiply-add";
  constexpr int64_t kElements = 22003;
  UpdatedWeights here(kElements, PartsFor(0)), there(kElements, PartsFor(0));
  for (int32_t step : {0, 1, 2}) {
    here.step = there.step = step;
    here.Step(
        [](Op op, const OpAttrs& attrs, const std::vector<TensorView>& operands) {
          RunOp(op, attrs, operands);
          return Status{};
        },
        0, kElements);
    there.Step(
        [](Op op, const OpAttrs& attrs, const std::vector<TensorView>& operands) {
          return cpu::Find(op)(attrs, operands, {.threads = 2});
        },
        0, kElements);
  }
  EXPECT_EQ(here.param, there.param);
  EXPECT_EQ(here.m, there.m);
  EXPECT_EQ(here.v, there.v);
}

TEST(CudaRegistryTest, EveryOpHasAKernelAndAnUnknownOneIsRefusedByName) {
  for (int op = 1; op <= static_cast<int>(Op::kLastOp); ++op) {
    EXPECT_NE(Find(static_cast<Op>(op)), nullptr) << Name(static_cast<Op>(op));
  }
  const Op ops[] = {Op::kMatmul, static_cast<Op>(200)};
  EXPECT_TRUE(CheckSupported(std::span(ops).first(1)).ok());
  EXPECT_EQ(CheckSupported(ops).message,
            "cuda: there is no kernel for op 'unknown' yet: run on the CPU, or choose a layout "
            "without it");
}

}  // namespace
}  // namespace terrace::kernels::cuda
