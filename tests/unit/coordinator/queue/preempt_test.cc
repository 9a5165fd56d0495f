// SPDX-License-Identifier: Apache-2.0
#include "coordinator/queue/preempt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/unit/coordinator/queue/cluster.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kHour = 3'600'000;

HeldGang GangOf(std::map<size_t, uint32_t> devices, double lost) {
  return {.devices = std::move(devices), .lost_device_seconds = lost, .may_stop = true};
}

Need NeedOf(uint32_t devices, uint32_t nodes = 1) { return {.nodes = nodes, .devices = devices}; }

TEST(PreemptTest, TheJobsThatLoseTheLeastTogetherStop) {
  const std::vector<QueueNode> nodes = {WorkerOf("w", {kHour, kHour, kHour, kHour})};
  const std::vector<HeldGang> gangs = {GangOf({{0, 1}}, 30), GangOf({{0, 2}}, 50),
                                       GangOf({{0, 1}}, 25)};
  EXPECT_THAT(GangsToStop(NeedOf(1), nodes, gangs), ElementsAre(2));
  EXPECT_THAT(GangsToStop(NeedOf(2), nodes, gangs), ElementsAre(1)) << "50 is less than 30 + 25";
  EXPECT_THAT(GangsToStop(NeedOf(3), nodes, gangs), ElementsAre(1, 2));
  EXPECT_THAT(GangsToStop(NeedOf(4), nodes, gangs), ElementsAre(0, 1, 2));
}

TEST(PreemptTest, NobodyStopsForAJobThatFindsItsDevicesOrCannot) {
  std::vector<QueueNode> nodes = {WorkerOf("w", {kHour, 0})};
  std::vector<HeldGang> gangs = {GangOf({{0, 1}}, 1)};
  EXPECT_THAT(GangsToStop(NeedOf(1), nodes, gangs), IsEmpty()) << "one is free";
  EXPECT_THAT(GangsToStop(NeedOf(3), nodes, gangs), IsEmpty()) << "there are two";
  EXPECT_THAT(GangsToStop(NeedOf(2), nodes, gangs), ElementsAre(0));
  gangs[0].may_stop = false;
  EXPECT_THAT(GangsToStop(NeedOf(2), nodes, gangs), IsEmpty());
  gangs[0].stops = true;
  EXPECT_THAT(GangsToStop(NeedOf(2), nodes, gangs), IsEmpty()) << "it stops already";
  nodes[0].ready = false;
  EXPECT_THAT(GangsToStop(NeedOf(2), nodes, {GangOf({{0, 1}}, 1)}), IsEmpty());
}

TEST(PreemptTest, AGangOverSeveralWorkersIsCountedOnce) {
  const std::vector<QueueNode> nodes = {WorkerOf("a", {kHour}), WorkerOf("b", {kHour}),
                                        WorkerOf("c", {kHour})};
  const std::vector<HeldGang> gangs = {GangOf({{0, 1}, {1, 1}}, 30), GangOf({{2, 1}}, 20)};
  EXPECT_THAT(GangsToStop(NeedOf(1, 1), nodes, gangs), ElementsAre(1));
  EXPECT_THAT(GangsToStop(NeedOf(1, 2), nodes, gangs), ElementsAre(0))
      << "once it stops the other is needless";
  EXPECT_THAT(GangsToStop(NeedOf(1, 3), nodes, gangs), ElementsAre(0, 1));
}

// ---- random clusters --------------------------------------------------------------------------

struct Random {
  std::vector<QueueNode> nodes;
  std::vector<HeldGang> gangs;
  Need need;
};

Random Draw(std::mt19937& random, bool spanning) {
  const auto below = [&random](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  Random drawn;
  const size_t workers = 1 + below(4);
  for (size_t w = 0; w < workers; ++w)
    drawn.nodes.push_back(WorkerOf(absl::StrCat("w", w), std::vector<int64_t>(1 + below(4), 0)));
  for (uint32_t g = 1 + below(6); g > 0; --g) {
    HeldGang gang = GangOf({}, 1 + below(40));
    gang.may_stop = below(5) > 0;
    gang.stops = !gang.may_stop && below(3) == 0;
    for (uint32_t part = spanning ? 1 + below(2) : 1; part > 0; --part) {
      const size_t node = below(static_cast<uint32_t>(workers));
      for (int64_t& free_at : drawn.nodes[node].free_at_ms) {
        if (free_at != kFreeNow || below(2) == 0) continue;
        free_at = kHour + kQueueNowMs;
        ++gang.devices[node];
      }
    }
    drawn.gangs.push_back(std::move(gang));
  }
  drawn.need = NeedOf(1 + below(3), 1 + below(static_cast<uint32_t>(workers)));
  return drawn;
}

bool Starts(const Random& drawn, uint32_t stopped) {
  uint32_t enough = 0;
  for (size_t node = 0; node < drawn.nodes.size(); ++node) {
    uint32_t free = FreeDevices(drawn.nodes[node]);
    for (size_t g = 0; g < drawn.gangs.size(); ++g) {
      const auto held = drawn.gangs[g].devices.find(node);
      if (held != drawn.gangs[g].devices.end() && ((stopped >> g & 1) != 0 || drawn.gangs[g].stops))
        free += held->second;
    }
    enough += free >= drawn.need.devices ? 1 : 0;
  }
  return enough >= drawn.need.nodes;
}

double LostBy(const Random& drawn, uint32_t stopped) {
  double lost = 0;
  for (size_t g = 0; g < drawn.gangs.size(); ++g)
    if ((stopped >> g & 1) != 0) lost += drawn.gangs[g].lost_device_seconds;
  return lost;
}

// Of all sets of gangs that may stop; infinite: none lets the job start.
double LeastLost(const Random& drawn) {
  double least = std::numeric_limits<double>::infinity();
  for (uint32_t set = 0; set < 1u << drawn.gangs.size(); ++set) {
    bool may = true;
    for (size_t g = 0; g < drawn.gangs.size(); ++g)
      may = may && ((set >> g & 1) == 0 || drawn.gangs[g].may_stop);
    if (may && Starts(drawn, set)) least = std::min(least, LostBy(drawn, set));
  }
  return least;
}

void Check(bool spanning) {
  std::mt19937 random(7);
  int chosen = 0;
  for (int i = 0; i < 4000; ++i) {
    const Random drawn = Draw(random, spanning);
    uint32_t stopped = 0;
    for (const size_t gang : GangsToStop(drawn.need, drawn.nodes, drawn.gangs)) {
      ASSERT_TRUE(drawn.gangs[gang].may_stop);
      stopped |= 1u << gang;
    }
    const double least = LeastLost(drawn);
    if (stopped == 0) {
      ASSERT_TRUE(least == 0 || least == std::numeric_limits<double>::infinity()) << i;
      continue;
    }
    ++chosen;
    ASSERT_TRUE(Starts(drawn, stopped)) << i;
    for (size_t gang = 0; gang < drawn.gangs.size(); ++gang) {
      if ((stopped >> gang & 1) != 0) {
        ASSERT_FALSE(Starts(drawn, stopped & ~(1u << gang))) << i << ": gang " << gang;
      }
    }
    if (!spanning) {
      ASSERT_EQ(LostBy(drawn, stopped), least) << i;
    }
  }
  EXPECT_GT(chosen, 400);
}

TEST(PreemptTest, OfGangsOnOneWorkerEachTheChoiceIsTheBestThereIs) { Check(/*spanning=*/false); }
TEST(PreemptTest, OfGangsOverWorkersNoneStopsInVain) { Check(/*spanning=*/true); }

}  // namespace
}  // namespace terrace
