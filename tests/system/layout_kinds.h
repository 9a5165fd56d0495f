// Kinds of layouts on which a small job must train as on one rank: every schedule, shared heads of
// keys, sequence and context parallelism, ZeRO beside them.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/system/layout_data.h"

namespace terrace {

struct LayoutKind {
  std::string name;
  uint32_t data = 1, tensor = 1, pipeline = 1, context = 1, zero = 0;
  std::string schedule = "1f1b", recompute = "none", context_type = "ring";
  bool sequence_parallel = false;
};

inline v1::Layout LayoutOfKind(const LayoutKind& kind) {
  v1::Layout layout = MatrixLayout();
  layout.set_micro_batch(1);
  layout.set_micro_batches(4 / kind.data);
  layout.set_data_parallel(kind.data);
  layout.set_tensor_parallel(kind.tensor);
  layout.set_pipeline_parallel(kind.pipeline);
  layout.set_context_parallel(kind.context);
  layout.set_ranks(kind.data * kind.tensor * kind.pipeline * kind.context);
  layout.set_zero_stage(kind.zero);
  layout.set_schedule(kind.schedule);
  const bool chunks = kind.schedule == "breadth_first" || TwoChunksByDefault(kind.schedule);
  layout.set_interleave(chunks ? 2 : 1);
  layout.set_recompute(kind.recompute);
  layout.set_context_type(kind.context_type);
  layout.set_sequence_parallel(kind.sequence_parallel);
  return layout;
}

// Four tensor-parallel ranks share two heads of keys of llama's.
inline const std::vector<LayoutKind> kKinds = {
    {.name = "gpipe", .pipeline = 2, .schedule = "gpipe"},
    {.name = "interleaved", .pipeline = 2, .schedule = "interleaved"},
    {.name = "zb-h1", .pipeline = 2, .schedule = "zb-h1"},
    {.name = "zbv", .pipeline = 2, .schedule = "zbv", .recompute = "selective"},
    {.name = "breadth first", .pipeline = 2, .schedule = "breadth_first"},
    {.name = "shared keys", .tensor = 4},
    {.name = "sequence parallel", .tensor = 2, .recompute = "selective", .sequence_parallel = true},
    {.name = "shared keys, sequence parallel",
     .tensor = 4,
     .recompute = "block",
     .sequence_parallel = true},
    {.name = "ulysses", .context = 2, .context_type = "ulysses"},
    {.name = "all", .data = 2, .tensor = 2, .pipeline = 2, .zero = 1, .sequence_parallel = true},
    {.name = "all sharded", .data = 2, .tensor = 4, .zero = 3, .recompute = "selective"},
};

// Losses come near enough that a gradient summed once too often, or not at all, shows in the second
// step.
inline void ExpectEveryKindDoesAsOneRank(const JobData& data, const std::string& what,
                                         const std::vector<LayoutKind>& kinds = kKinds) {
  constexpr int64_t kSteps = 6;
  const JobResult one = TrainLayout(data, LayoutOfKind({}), kSteps, kInTurns);
  ASSERT_EQ(one.losses.size(), static_cast<size_t>(kSteps));
  EXPECT_LT(one.losses.back(), one.losses.front() - 0.05) << what;
  for (const LayoutKind& kind : kinds) {
    const JobResult result = TrainLayout(data, LayoutOfKind(kind), kSteps, kInTurns);
    ASSERT_EQ(result.losses.size(), one.losses.size()) << what << ", " << kind.name;
    for (size_t i = 0; i < one.losses.size(); ++i) {
      const std::string where = absl::StrCat(what, ", ", kind.name, ", step ", i);
      EXPECT_NEAR(result.losses[i], one.losses[i], 2e-5 * one.losses[i]) << where;
      // Adam divides what is nearly zero, so that rounding grows from step to step.
      EXPECT_NEAR(result.grad_norms[i], one.grad_norms[i],
                  (i == 0 ? 2e-5 : 2e-3) * one.grad_norms[i])
          << where;
    }
  }
}

inline JobData SmallJob(const std::string& family) {
  JobData data = RandomJob(MatrixModel(family), /*rows=*/4, /*length=*/16);
  data.train.mutable_optimizer()->set_lr(1e-2);
  return data;
}

}  // namespace terrace
