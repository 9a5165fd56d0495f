// The CPU backend through the op conformance suite. Also the example of how a backend joins it.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <new>

#include "kernels/cpu/registry.h"
#include "tests/conformance/op_conformance.h"

namespace terrace::kernels::conformance {
namespace {

// A workspace of exactly the promised size, with a fence behind it.
class FencedWorkspace {
 public:
  explicit FencedWorkspace(int64_t bytes) : bytes_(bytes) {
    data_ = static_cast<std::byte*>(::operator new(bytes + kFenceBytes, kAlignment));
    std::fill_n(data_, bytes + kFenceBytes, kFence);
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
  static constexpr std::align_val_t kAlignment{64};
  static constexpr int64_t kFenceBytes = 4096;
  static constexpr std::byte kFence{0xff};

  int64_t bytes_ = 0;
  std::byte* data_ = nullptr;
};

Status RunOnCpu(Op op, const OpAttrs& attrs, std::span<const TensorView> operands, int threads) {
  const std::vector<TensorShape> shapes(operands.begin(), operands.end());
  const int64_t bytes = WorkspaceBytes(op, attrs, shapes, threads);
  const FencedWorkspace workspace(bytes);
  const Context context = {
      .threads = threads, .workspace = workspace.data(), .workspace_bytes = bytes};
  const Status status = cpu::Find(op)(attrs, operands, context);
  EXPECT_TRUE(workspace.FenceStands()) << "the kernel wrote behind its workspace";
  return status;
}

class CpuOps : public testing::TestWithParam<OpCase> {
 protected:
  static void SetUpTestSuite() {
    const Status status = cpu::Prepare(3);
    ASSERT_TRUE(status.ok()) << status.message;
  }
};
class CpuGradients : public CpuOps {};

TEST_P(CpuOps, MatchTheReference) { ExpectMatchesReference(RunOnCpu, GetParam()); }
TEST_P(CpuOps, AreTheSameForAnyThreads) { ExpectSameForAnyThreads(RunOnCpu, GetParam()); }
TEST_P(CpuGradients, AreTheSlopesOfTheirForwardOp) {
  ExpectMatchesFiniteDifferences(RunOnCpu, GetParam());
}

std::string NameOf(const testing::TestParamInfo<OpCase>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(All, CpuOps, testing::ValuesIn(AllCases()), NameOf);
INSTANTIATE_TEST_SUITE_P(All, CpuGradients, testing::ValuesIn(DifferentiableCases()), NameOf);

TEST(OpConformanceTest, EveryOpHasACase) {
  const std::vector<OpCase> cases = AllCases();
  for (int op = 1; op <= static_cast<int>(Op::kLastOp); ++op) {
    const auto is_of_op = [op](const OpCase& c) { return static_cast<int>(c.op) == op; };
    EXPECT_TRUE(std::any_of(cases.begin(), cases.end(), is_of_op)) << Name(static_cast<Op>(op));
  }
}

}  // namespace
}  // namespace terrace::kernels::conformance
