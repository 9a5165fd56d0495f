// SPDX-License-Identifier: Apache-2.0
#include "coordinator/queue/earliest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/coordinator/queue/cluster.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(EarliestTest, AGangStartsWhenTheLastOfItsWorkersHasEnoughDevices) {
  const std::vector<QueueNode> nodes = {WorkerOf("a", {0, 50}), WorkerOf("b", {30, 0}),
                                        WorkerOf("c", {90, 10})};
  const Earliest both = EarliestFor({.nodes = 2, .devices = 2}, {0, 1, 2}, nodes);
  EXPECT_EQ(both.at_ms, kQueueNowMs + 50);
  EXPECT_THAT(both.nodes, ElementsAre(0, 1));
  const Earliest one = EarliestFor({.nodes = 1, .devices = 1}, {2}, nodes);
  EXPECT_EQ(one.at_ms, kQueueNowMs + 10);
}

TEST(EarliestTest, OfAsEarlyOnesThoseThatAreFullNowAreTaken) {
  const std::vector<QueueNode> nodes = {WorkerOf("a", {0, 0}), WorkerOf("b", {20, 20}),
                                        WorkerOf("c", {20, 20})};
  EXPECT_THAT(EarliestFor({.nodes = 2, .devices = 2}, {0, 1, 2}, nodes).nodes, ElementsAre(1, 2));
}

TEST(EarliestTest, AnUnknownEndIsNoTime) {
  QueueNode silent = WorkerOf("c", {0, 0});
  silent.ready = false;
  const std::vector<QueueNode> nodes = {WorkerOf("a", {0, kUnknownMs}), WorkerOf("b", {5, 5}),
                                        silent};
  const Earliest none = EarliestFor({.nodes = 2, .devices = 2}, {0, 1, 2}, nodes);
  EXPECT_EQ(none.at_ms, kUnknownMs);
  EXPECT_THAT(none.nodes, IsEmpty());
  EXPECT_EQ(EarliestFor({.nodes = 1, .devices = 1}, {0}, nodes).at_ms, kFreeNow);
}

TEST(EarliestTest, WhatIsHeldIsFreeAfterwards) {
  std::vector<QueueNode> nodes = {WorkerOf("a", {0, 50, 80})};
  const Need need{.nodes = 1, .devices = 2};
  const Earliest earliest = EarliestFor(need, {0}, nodes);
  Hold(need, earliest, kQueueNowMs + 500, &nodes);
  EXPECT_THAT(nodes[0].free_at_ms,
              ElementsAre(kQueueNowMs + 500, kQueueNowMs + 500, kQueueNowMs + 80));
}

}  // namespace
}  // namespace terrace
