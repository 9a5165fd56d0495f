// What the closed form says that a stage holds, against the order in which the compiler makes the
// stage's passes.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/estimate_held.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "coordinator/compiler/pipeline/schedule.h"

namespace terrace {
namespace {

struct Weights {
  double kept = 1, put_off = 1;  // of a layer
};

// The most at any time, of the passes in their order.
double MostOfOrder(const std::vector<compiler::Pass>& passes, const std::vector<int64_t>& chunks,
                   const Weights& weights) {
  double held = 0, most = 0;
  for (const compiler::Pass& pass : passes) {
    const auto layers = static_cast<double>(chunks[pass.chunk]);
    switch (pass.kind) {
      case compiler::PassKind::kForward:
        held += weights.kept * layers;
        break;
      case compiler::PassKind::kBackward:
        held -= weights.kept * layers;
        break;
      case compiler::PassKind::kBackwardInput:
        held += (weights.put_off - weights.kept) * layers;
        break;
      case compiler::PassKind::kBackwardWeight:
        held -= weights.put_off * layers;
        break;
    }
    most = std::max(most, held);
  }
  EXPECT_NEAR(held, 0, 1e-6);
  return most;
}

double MostByClosedForm(const HeldMoments& moments, const Weights& weights) {
  double most = 0;
  for (const HeldLayers& held : moments) {
    most = std::max(most, weights.kept * static_cast<double>(held.kept) +
                              weights.put_off * static_cast<double>(held.put_off));
  }
  return most;
}

TEST(EstimateHeldTest, AStageHoldsWhatTheOrderOfItsPassesMakesItHold) {
  struct Kind {
    const char* schedule;
    std::vector<int64_t> chunks;  // layers of every stage's
  };
  // Blocks recomputed, all kept, and in between.
  const Weights all[] = {{1, 12}, {1, 1}, {1, 1.5}};
  for (const Kind& kind : {Kind{"gpipe", {5}},
                           {"breadth_first", {4, 4, 3}},
                           {"1f1b", {5}},
                           {"interleaved", {4, 4, 3}},
                           {"zb-h1", {5}},
                           {"zbv", {6, 5}},
                           {"zbv", {9, 1}}}) {
    for (const int stages : {2, 4, 8}) {
      for (const int batches : {1, 2, 3, stages, 2 * stages, 5 * stages}) {
        const int chunks = static_cast<int>(kind.chunks.size());
        const auto schedule = compiler::MakeSchedule(
            {.name = kind.schedule, .stages = stages, .chunks = chunks, .micro_batches = batches});
        ASSERT_TRUE(schedule.ok()) << schedule.status();
        v1::Layout layout;
        layout.set_schedule(kind.schedule);
        layout.set_pipeline_parallel(static_cast<uint32_t>(stages));
        layout.set_interleave(static_cast<uint32_t>(chunks));
        layout.set_micro_batches(static_cast<uint32_t>(batches));
        for (int stage = 0; stage < stages; ++stage) {
          for (const Weights& weights : all) {
            const double most = MostOfOrder((*schedule)[stage], kind.chunks, weights);
            const double closed =
                MostByClosedForm(HeldMomentsOf(layout, stage, kind.chunks), weights);
            const auto where = testing::Message()
                               << kind.schedule << ", stage " << stage << " of " << stages << ", "
                               << batches << " micro-batches, a layer kept " << weights.kept
                               << ", put off " << weights.put_off;
            EXPECT_GE(closed, 0.8 * most) << where;
            EXPECT_LE(closed, 1.25 * most) << where;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace terrace
