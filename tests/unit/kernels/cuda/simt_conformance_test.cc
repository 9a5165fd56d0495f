// The CUDA kernels through the op conformance suite without a GPU: compiled as host code and
// executed thread by thread (simt/simt.h), with plain loops in place of cuBLASLt.
//
// Where the suite asks for other numbers of threads, the turns of a block's threads change their
// order: a result that differs is a race.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <new>

#include "kernels/cuda/registry.h"
#include "kernels/cuda/workspace.h"
#include "tests/conformance/op_conformance.h"
#include "tests/unit/kernels/cuda/plain_gemms.h"
#include "tests/unit/kernels/cuda/simt/hopper.h"
#include "tests/unit/kernels/cuda/simt/simt.h"

namespace terrace::kernels::conformance {
namespace {

// Few, so that blocks that stay have several tasks.
constexpr int kMultiprocessors = 3;

// Exactly as large as promised, poisoned, with a fence behind it. The library's part, which comes
// first and is large, is left as it is.
class FencedWorkspace {
 public:
  explicit FencedWorkspace(int64_t bytes) : bytes_(bytes) {
    data_ = static_cast<std::byte*>(::operator new(bytes + kFenceBytes, kAlignment));
    const int64_t first = bytes > cuda::kGemmLibraryBytes ? cuda::kGemmLibraryBytes : 0;
    std::fill(data_ + first, data_ + bytes + kFenceBytes, kFence);
  }
  ~FencedWorkspace() { ::operator delete(data_, kAlignment); }
  FencedWorkspace(const FencedWorkspace&) = delete;
  FencedWorkspace& operator=(const FencedWorkspace&) = delete;

  std::byte* data() const { return data_; }
  bool FenceStands() const {
    return std::all_of(data_ + bytes_, data_ + bytes_ + kFenceBytes,
                       [](std::byte b) { return b == kFence; });
  }

 private:
  static constexpr std::align_val_t kAlignment{256};
  static constexpr int64_t kFenceBytes = 4096;
  static constexpr std::byte kFence{0xff};

  int64_t bytes_ = 0;
  std::byte* data_ = nullptr;
};

Status RunWith(const cuda::GemmLibrary& gemms, Op op, const OpAttrs& attrs,
               std::span<const TensorView> operands, bool wgmma_attention = false) {
  const std::vector<TensorShape> shapes(operands.begin(), operands.end());
  const int64_t bytes = cuda::WorkspaceBytes(op, attrs, shapes);
  const FencedWorkspace workspace(bytes);
  cuda::Fault fault = cuda::kNoFault;
  const cuda::Context context = {.gemms = &gemms,
                                 .faults = &fault,
                                 .workspace = workspace.data(),
                                 .workspace_bytes = bytes,
                                 .multiprocessors = kMultiprocessors,
                                 .wgmma_attention = wgmma_attention};
  const Status status = cuda::Find(op)(attrs, operands, context);
  EXPECT_EQ(fault, cuda::kNoFault);
  EXPECT_TRUE(workspace.FenceStands()) << "the kernel wrote behind its workspace";
  return status;
}

void SetOrder(int threads) {
  simt::SetOrder(threads == 1   ? simt::Order::kForward
                 : threads == 2 ? simt::Order::kBackward
                                : simt::Order::kShuffled);
}

Status RunOnSimt(Op op, const OpAttrs& attrs, std::span<const TensorView> operands, int threads) {
  SetOrder(threads);
  return RunWith(cuda::PlainGemms(/*fuses=*/true), op, attrs, operands);
}

// Attention on what sm_90a has alone.
Status RunOnWgmma(Op op, const OpAttrs& attrs, std::span<const TensorView> operands, int threads) {
  SetOrder(threads);
  return RunWith(cuda::PlainGemms(/*fuses=*/true), op, attrs, operands, /*wgmma_attention=*/true);
}

// A library that fuses nothing and stores f32 alone: every product is staged.
Status RunStaged(Op op, const OpAttrs& attrs, std::span<const TensorView> operands, int) {
  return RunWith(cuda::PlainGemms(/*fuses=*/false), op, attrs, operands);
}

// Every operand starts one element behind a whole 16 bytes; those that share memory still do.
Status RunMisaligned(Op op, const OpAttrs& attrs, std::span<const TensorView> operands, int) {
  std::map<void*, std::vector<std::byte>> copies;
  std::vector<TensorView> moved(operands.begin(), operands.end());
  for (TensorView& view : moved) {
    if (view.absent()) continue;
    std::vector<std::byte>& copy = copies[view.data];
    if (copy.empty()) {
      copy.resize(view.SpanBytes() + SizeOf(view.dtype));
      std::memcpy(copy.data() + SizeOf(view.dtype), view.data, view.SpanBytes());
    }
    view.data = copy.data() + SizeOf(view.dtype);
  }
  const Status status =
      RunWith(cuda::PlainGemms(/*fuses=*/true), op, attrs, moved, /*wgmma_attention=*/true);
  for (size_t i = 0; i < moved.size(); ++i) {
    if (!moved[i].absent()) std::memcpy(operands[i].data, moved[i].data, moved[i].SpanBytes());
  }
  return status;
}

std::vector<OpCase> Supported(std::vector<OpCase> cases) {
  std::erase_if(cases, [](const OpCase& c) { return cuda::Find(c.op) == nullptr; });
  return cases;
}

std::vector<OpCase> WithProducts() {
  std::vector<OpCase> cases = AllCases();
  std::erase_if(cases, [](const OpCase& c) {
    return c.op != Op::kMatmul && c.op != Op::kLmHeadLoss && c.op != Op::kLmHeadLossGrad;
  });
  return cases;
}

std::vector<OpCase> WithWgmma() {
  std::vector<OpCase> cases = AllCases();
  std::erase_if(cases, [](const OpCase& c) { return !IsAttentionOfHalves(c); });
  return cases;
}

class SimtOps : public testing::TestWithParam<OpCase> {};
class SimtProducts : public testing::TestWithParam<OpCase> {};
class SimtWgmma : public testing::TestWithParam<OpCase> {};
class SimtGradients : public testing::TestWithParam<OpCase> {};

TEST_P(SimtOps, MatchTheReference) { ExpectMatchesReference(RunOnSimt, GetParam()); }
TEST_P(SimtOps, AreTheSameForAnyOrderOfThreads) { ExpectSameForAnyThreads(RunOnSimt, GetParam()); }
TEST_P(SimtOps, MatchTheReferenceOnMisalignedMemory) {
  ExpectMatchesReference(RunMisaligned, GetParam());
}
TEST_P(SimtProducts, MatchTheReferenceWhereTheLibraryFusesNothing) {
  ExpectMatchesReference(RunStaged, GetParam());
}
TEST(SimtWgmmaTest, AttentionThatFitsIsComputedThereAndOnlyThenWhenAskedFor) {
  for (const OpCase& c : WithWgmma()) {
    if (c.name.find("tiled_128_window") == std::string::npos) continue;
    int64_t before = simt::ProductsStarted();
    ExpectMatchesReference(RunOnSimt, c);
    EXPECT_EQ(simt::ProductsStarted(), before) << c.name;
    ExpectMatchesReference(RunMisaligned, c);
    EXPECT_EQ(simt::ProductsStarted(), before) << c.name;
    ExpectMatchesReference(RunOnWgmma, c);
    EXPECT_GT(simt::ProductsStarted(), before) << c.name;
  }
}
TEST_P(SimtWgmma, MatchesTheReference) { ExpectMatchesReference(RunOnWgmma, GetParam()); }
TEST_P(SimtWgmma, IsTheSameForAnyOrderOfThreads) {
  ExpectSameForAnyThreads(RunOnWgmma, GetParam());
}
TEST_P(SimtGradients, AreTheSlopesOfTheirForwardOp) {
  ExpectMatchesFiniteDifferences(RunOnSimt, GetParam());
}

std::string NameOf(const testing::TestParamInfo<OpCase>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(All, SimtOps, testing::ValuesIn(Supported(AllCases())), NameOf);
INSTANTIATE_TEST_SUITE_P(All, SimtProducts, testing::ValuesIn(WithProducts()), NameOf);
INSTANTIATE_TEST_SUITE_P(All, SimtWgmma, testing::ValuesIn(WithWgmma()), NameOf);
INSTANTIATE_TEST_SUITE_P(All, SimtGradients, testing::ValuesIn(Supported(DifferentiableCases())),
                         NameOf);

}  // namespace
}  // namespace terrace::kernels::conformance
