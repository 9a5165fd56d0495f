// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/control_sim.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"

// Thousands of lives of a coordinator. To see one of them, step for step:
//   TERRACE_SIM_SEED=N build/release/tests/control_sim_test
// Others, and longer ones: TERRACE_SIM_LIVES lives begin at TERRACE_SIM_FIRST and have
// TERRACE_SIM_STEPS steps before all is well.
namespace terrace {
namespace {

uint64_t NumberFrom(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  uint64_t number = 0;
  return text != nullptr && absl::SimpleAtoi(text, &number) ? number : otherwise;
}

void Add(const ControlSim::Counts& one, ControlSim::Counts* all) {
  all->submitted += one.submitted;
  all->crashes += one.crashes;
  all->power_losses += one.power_losses;
  all->started += one.started;
  all->restarts += one.restarts;
  all->succeeded += one.succeeded;
  all->resized += one.resized;
  all->preempted += one.preempted;
  all->lost_messages += one.lost_messages;
  all->doubled_messages += one.doubled_messages;
  all->stale_messages += one.stale_messages;
}

class ControlSimTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { log::Init("sim", log::Level::kError); }
};

TEST_F(ControlSimTest, NoJobIsLostOrRunsTwiceWhateverFails) {
  const uint64_t seed = NumberFrom("TERRACE_SIM_SEED", 0);
  const uint64_t first = seed > 0 ? seed : NumberFrom("TERRACE_SIM_FIRST", 1);
  const uint64_t lives = seed > 0 ? 1 : NumberFrom("TERRACE_SIM_LIVES", TERRACE_SIM_LIVES);
  const int steps = static_cast<int>(NumberFrom("TERRACE_SIM_STEPS", ControlSim::Options().steps));
  ControlSim::Counts all;
  for (uint64_t life = first; life < first + lives; ++life) {
    ControlSim sim(life, {.steps = steps, .tells = seed > 0});
    const std::string failure = sim.Run();
    ASSERT_EQ(failure, "") << "replay it with TERRACE_SIM_SEED=" << life
                           << " TERRACE_SIM_STEPS=" << steps;
    Add(sim.counts(), &all);
  }
  const std::string told = absl::StrCat(
      all.submitted, " jobs, ", all.started, " ranks, ", all.restarts, " restarts, ", all.crashes,
      " crashes, ", all.power_losses, " of power, ", all.lost_messages, " messages lost, ",
      all.doubled_messages, " doubled, ", all.stale_messages, " stale, ", all.resized, " resized, ",
      all.preempted, " preempted, ", all.succeeded, " succeeded");
  RecordProperty("told", told);
  if (lives < 1000) return;
  // Something did happen.
  EXPECT_GT(all.submitted, static_cast<int64_t>(lives)) << told;
  EXPECT_GT(all.started, static_cast<int64_t>(lives)) << told;
  EXPECT_GT(all.restarts, static_cast<int64_t>(lives) / 2) << told;
  EXPECT_GT(all.resized, static_cast<int64_t>(lives) / 50) << told;
  EXPECT_GT(all.preempted, static_cast<int64_t>(lives) / 50) << told;
  EXPECT_GT(all.crashes, static_cast<int64_t>(lives)) << told;
  EXPECT_GT(all.succeeded, static_cast<int64_t>(lives)) << told;
  EXPECT_GT(all.stale_messages, static_cast<int64_t>(lives) / 2) << told;
}

// The same seed is the same life.
TEST_F(ControlSimTest, ALifeFollowsFromItsSeed) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    ControlSim one(seed, {}), other(seed, {});
    EXPECT_EQ(one.Run(), other.Run());
    EXPECT_EQ(one.counts(), other.counts());
  }
}

}  // namespace
}  // namespace terrace
