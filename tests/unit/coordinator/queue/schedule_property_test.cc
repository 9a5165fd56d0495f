// Random clusters and queues: by the planned times no job that starts early delays the first job
// that waits, and no device is given away twice.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/queue/earliest.h"
#include "tests/unit/coordinator/queue/cluster.h"

namespace terrace {
namespace {

constexpr int kCases = 3000;

struct Case {
  std::vector<std::string> names;
  std::vector<QueuedJob> jobs;
  std::vector<QueueNode> nodes;
};

class Cases {
 public:
  explicit Cases(uint32_t seed) : random_(seed) {}

  Case Next() {
    Case made;
    const int nodes = Between(1, 5), jobs = Between(2, 12);
    for (int i = 0; i < nodes; ++i) made.nodes.push_back(Node(i));
    for (int i = 0; i < jobs; ++i) made.names.push_back(absl::StrCat("j", i));
    for (const std::string& name : made.names) made.jobs.push_back(Job(name));
    return made;
  }

 private:
  int Between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  QueueNode Node(int number) {
    QueueNode node = WorkerOf(absl::StrCat("w", number), {});
    node.cuda = Between(0, 5) == 0;
    node.ready = Between(0, 9) > 0;
    if (Between(0, 9) == 0) node.problem = "cannot be reached";
    const int devices = Between(1, 4);
    for (int i = 0; i < devices; ++i) {
      const int kind = Between(0, 9);
      node.free_at_ms.push_back(kind < 4    ? kFreeNow
                                : kind == 9 ? kUnknownMs
                                            : kQueueNowMs + Between(1, 30));
    }
    return node;
  }
  QueuedJob Job(std::string_view name) {
    QueuedJob job = JobOf(name, static_cast<uint32_t>(Between(1, 4)),
                          Between(0, 6) == 0 ? kUnknownMs : Between(1, 40),
                          static_cast<uint32_t>(Between(1, 3)));
    job.need.cuda = Between(0, 7) == 0;
    job.priority = Between(0, 2);
    return job;
  }

  std::mt19937 random_;
};

std::vector<size_t> MatchingOf(const Need& need, const std::vector<QueueNode>& nodes) {
  std::vector<size_t> matching;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (Matches(need, nodes[i])) matching.push_back(i);
  }
  return matching;
}

// The plain rule, without what the policy keeps for speed: the cluster as it was when the first job
// found no devices, and as it is after all decisions.
TEST(QueuePropertyTest, NoJobThatStartsEarlyDelaysTheFirstThatWaits) {
  Cases cases(20'261'128);
  int early = 0, waited = 0;
  for (int number = 0; number < kCases; ++number) {
    const Case one = cases.Next();
    std::vector<QueueNode> nodes = one.nodes;
    const QueuedJob* first = nullptr;
    int64_t reserved_ms = kUnknownMs;
    std::set<std::pair<size_t, uint32_t>> taken;
    for (const QueueDecision& decision : Decide(one.jobs, one.nodes)) {
      const QueuedJob& job = one.jobs[decision.job];
      const std::vector<size_t> matching = MatchingOf(job.need, one.nodes);
      if (decision.ranks.empty()) {
        if (first == nullptr && matching.size() >= job.need.nodes) {
          first = &job;
          reserved_ms = EarliestFor(job.need, matching, nodes).at_ms;
        }
        continue;
      }
      early += first != nullptr;
      for (const RankPlace& place : decision.ranks) {
        EXPECT_TRUE(taken.insert({place.node, place.device}).second) << "case " << number;
        EXPECT_EQ(one.nodes[place.node].free_at_ms[place.device], kFreeNow) << "case " << number;
        EXPECT_TRUE(one.nodes[place.node].ready && Matches(job.need, one.nodes[place.node]));
        nodes[place.node].free_at_ms[place.device] =
            job.planned_ms == kUnknownMs ? kUnknownMs : kQueueNowMs + job.planned_ms;
      }
    }
    if (first == nullptr) continue;
    ++waited;
    const std::vector<size_t> matching = MatchingOf(first->need, one.nodes);
    EXPECT_LE(EarliestFor(first->need, matching, nodes).at_ms, reserved_ms)
        << "case " << number << ", job " << first->id;
  }
  EXPECT_GT(early, kCases / 20) << "the cases are such that jobs start early";
  EXPECT_GT(waited, kCases / 2);
}

// What is left free could not be used by any job that waits, or it is kept for another.
TEST(QueuePropertyTest, WithoutAReservationEveryJobThatFitsStarts) {
  Cases cases(42);
  for (int number = 0; number < kCases; ++number) {
    const Case one = cases.Next();
    std::vector<QueueNode> nodes = one.nodes;
    for (const QueueDecision& decision : Decide(one.jobs, one.nodes)) {
      const QueuedJob& job = one.jobs[decision.job];
      if (decision.ranks.empty()) {
        if (decision.waits->reasons[0].what == WaitFor::kWorker) continue;
        const std::vector<size_t> matching = MatchingOf(job.need, one.nodes);
        const bool fits = EarliestFor(job.need, matching, nodes).at_ms == kFreeNow;
        EXPECT_FALSE(fits && decision.waits->reasons.size() == 1)
            << "case " << number << ": job " << job.id << " fits, and nobody is ahead of it";
        continue;
      }
      for (const RankPlace& place : decision.ranks)
        nodes[place.node].free_at_ms[place.device] = kUnknownMs;
    }
  }
}

}  // namespace
}  // namespace terrace
