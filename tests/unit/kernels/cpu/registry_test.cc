// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/registry.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <set>
#include <string>

#include "tests/conformance/op_conformance.h"
#include "tests/unit/kernels/cpu/launch.h"

namespace terrace::kernels::cpu {
namespace {

TEST(RegistryTest, EveryOpHasItsOwnKernel) {
  std::set<Kernel> kernels;
  for (int op = 1; op <= static_cast<int>(Op::kLastOp); ++op) {
    const Kernel kernel = Find(static_cast<Op>(op));
    ASSERT_NE(kernel, nullptr);
    EXPECT_TRUE(kernels.insert(kernel).second) << Name(static_cast<Op>(op));
  }
}

TEST(RegistryTest, TheInstructionSetIsADocumentedOne) {
  const std::set<std::string> documented = {"avx512+amx_bf16", "avx512_bf16", "avx512", "avx2",
                                            "sse4"};
  EXPECT_TRUE(documented.contains(InstructionSet())) << InstructionSet();
}

Status RunCpu(Op op, const OpAttrs& attrs, std::span<const TensorView> operands, int threads) {
  return Launch(op, attrs, {operands.begin(), operands.end()}, threads);
}

// Whether the vectorised files of this folder hold the op; products and attention choose their
// engines themselves.
bool IsVectorised(Op op) {
  return op != Op::kMatmul && op != Op::kAttention && op != Op::kAttentionGrad &&
         op != Op::kLmHeadLoss && op != Op::kLmHeadLossGrad && op != Op::kUpdateMatrix;
}

TEST(InstructionSetTest, EveryVectorWidthMatchesTheReference) {
  for (int64_t targets = hwy::SupportedTargets(); targets != 0; targets &= targets - 1) {
    const int64_t target = targets & -targets;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    for (const conformance::OpCase& op_case : conformance::AllCases()) {
      constexpr int64_t kSmall = 5000;  // the wide cases add time here, not coverage
      if (!IsVectorised(op_case.op) || op_case.operands[0].Elements() > kSmall) continue;
      SCOPED_TRACE(std::string(hwy::TargetName(target)) + " " + op_case.name);
      conformance::ExpectMatchesReference(RunCpu, op_case);
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace
}  // namespace terrace::kernels::cpu
