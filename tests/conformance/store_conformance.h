// What every Store promises, as one suite: instantiate StoreConformance with a factory per
// implementation.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/store/store.h"

namespace terrace {

struct StoreFactory {
  std::string name;
  std::function<std::unique_ptr<Store>()> make;
};

class StoreConformance : public testing::TestWithParam<StoreFactory> {
 protected:
  void SetUp() override { store_ = GetParam().make(); }

  static v1::Job MakeJob(const std::string& id, int64_t version = 0) {
    v1::Job job;
    job.set_id(id);
    job.set_version(version);
    return job;
  }
  static v1::JobEvent MakeEvent(const std::string& job, int64_t sequence) {
    v1::JobEvent event;
    event.set_job(job);
    event.set_sequence(sequence);
    event.mutable_step()->set_step(sequence * 10);
    return event;
  }
  static v1::JobSummary MakeEnded(const std::string& id, int64_t number) {
    v1::JobSummary job;
    job.set_id(id);
    job.set_number(number);
    job.set_state(v1::SUCCEEDED);
    return job;
  }
  std::vector<int64_t> Numbers(const JobFilter& filter, int64_t before, int64_t limit) {
    std::vector<int64_t> numbers;
    const auto jobs = store_->ListEnded(filter, before, limit);
    EXPECT_TRUE(jobs.ok()) << jobs.status();
    if (!jobs.ok()) return numbers;
    for (const v1::JobSummary& job : *jobs) numbers.push_back(job.number());
    return numbers;
  }
  absl::Status Put(const v1::Job& job) { return store_->Commit({.jobs = {job}}); }

  std::unique_ptr<Store> store_;
};

TEST_P(StoreConformance, AStoredJobIsReadBackOneVersionOn) {
  v1::Job job = MakeJob("a-1");
  job.set_state(v1::QUEUED);
  job.mutable_spec()->set_name("a");
  ASSERT_TRUE(Put(job).ok());
  const auto read = store_->GetJob("a-1");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->version(), 1);
  EXPECT_EQ(read->state(), v1::QUEUED);
  EXPECT_EQ(read->spec().name(), "a");
}

TEST_P(StoreConformance, MissingThingsAreNotFound) {
  EXPECT_EQ(store_->GetJob("nobody").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->GetProgram("00").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(*store_->LastSequence("nobody"), 0);
  EXPECT_TRUE(store_->Events("nobody", 0, 10)->empty());
}

TEST_P(StoreConformance, AWriterWhoObservedAnOldVersionIsAborted) {
  ASSERT_TRUE(Put(MakeJob("a-1")).ok());
  ASSERT_TRUE(Put(MakeJob("a-1", 1)).ok());
  EXPECT_EQ(Put(MakeJob("a-1", 1)).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Put(MakeJob("a-1", 0)).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Put(MakeJob("b-2", 3)).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(store_->GetJob("a-1")->version(), 2);
}

TEST_P(StoreConformance, ATransactionIsAllOrNothing) {
  ASSERT_TRUE(Put(MakeJob("a-1")).ok());
  Transaction transaction{
      .jobs = {MakeJob("b-2"), MakeJob("a-1", 7)},
      .programs = {{.sha256 = "aa", .bytes = "program"}},
      .events = {MakeEvent("b-2", 1)},
  };
  EXPECT_EQ(store_->Commit(transaction).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(store_->GetJob("b-2").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store_->GetProgram("aa").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(store_->Events("b-2", 0, 10)->empty());
  transaction.jobs[1].set_version(1);
  EXPECT_TRUE(store_->Commit(transaction).ok());
  EXPECT_EQ(*store_->GetProgram("aa"), "program");
}

TEST_P(StoreConformance, JobsAreListedInOrderOfSubmission) {
  for (const char* id : {"z-1", "a-2", "m-3"}) ASSERT_TRUE(Put(MakeJob(id)).ok());
  ASSERT_TRUE(Put(MakeJob("z-1", 1)).ok());
  const auto jobs = store_->ListJobs();
  ASSERT_EQ(jobs->size(), 3);
  EXPECT_EQ((*jobs)[0].id(), "z-1");
  EXPECT_EQ((*jobs)[1].id(), "a-2");
  EXPECT_EQ((*jobs)[2].id(), "m-3");
}

TEST_P(StoreConformance, AJobWhoseEndIsStoredIsNotActive) {
  for (const char* id : {"z-1", "a-2", "m-3"}) ASSERT_TRUE(Put(MakeJob(id)).ok());
  ASSERT_TRUE(store_->Commit({.jobs = {MakeJob("a-2", 1)}, .ended = {MakeEnded("a-2", 2)}}).ok());
  const auto active = store_->ListActiveJobs();
  ASSERT_EQ(active->size(), 2);
  EXPECT_EQ((*active)[0].id(), "z-1");
  EXPECT_EQ((*active)[1].id(), "m-3");
  EXPECT_EQ(store_->ListJobs()->size(), 3);
  EXPECT_EQ(store_->GetJob("a-2")->version(), 2) << "it is kept whole, too";
  const Transaction aborted{.jobs = {MakeJob("m-3", 9)}, .ended = {MakeEnded("m-3", 3)}};
  EXPECT_EQ(store_->Commit(aborted).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(store_->ListActiveJobs()->size(), 2);
}

TEST_P(StoreConformance, EndedJobsAreListedNewestFirstPageByPage) {
  for (int64_t number = 1; number <= 7; ++number)
    ASSERT_TRUE(store_->Commit({.ended = {MakeEnded(absl::StrCat("j-", number), number)}}).ok());
  EXPECT_THAT(Numbers({}, INT64_MAX, 3), testing::ElementsAre(7, 6, 5));
  EXPECT_THAT(Numbers({}, 5, 3), testing::ElementsAre(4, 3, 2));
  EXPECT_THAT(Numbers({}, 2, 3), testing::ElementsAre(1));
  EXPECT_THAT(Numbers({}, 1, 3), testing::IsEmpty());
}

// Every way to ask is compared with what JobFilter says of each job.
TEST_P(StoreConformance, EndedJobsAreFilteredAndCounted) {
  std::vector<v1::JobSummary> jobs;
  for (int64_t number = 1; number <= 60; ++number) {
    v1::JobSummary job = MakeEnded(absl::StrCat("Name%_", number % 7, "-", number), number);
    job.set_owner(number % 2 == 0 ? "alice" : number % 3 == 0 ? "bob" : "");
    job.set_array(number % 5 == 0 ? "first-5" : "");
    job.set_state(number % 4 == 0 ? v1::FAILED : number % 4 == 1 ? v1::CANCELLED : v1::SUCCEEDED);
    job.set_message(number % 6 == 0 ? "It's OUT of memory" : "");
    jobs.push_back(job);
    ASSERT_TRUE(store_->Commit({.ended = {job}}).ok());
  }
  int tried = 0;
  for (const std::vector<v1::JobState>& states :
       {std::vector<v1::JobState>{}, {v1::FAILED}, {v1::CANCELLED, v1::SUCCEEDED}, {v1::RUNNING}}) {
    for (const char* owner : {"", "alice", "nobody"}) {
      for (const char* array : {"", "first-5"}) {
        for (const char* text : {"", "it's out", "e%_3", "%"}) {
          const JobFilter filter{states, owner, array, text};
          std::vector<int64_t> numbers;
          std::map<v1::JobState, int64_t> counts;
          for (auto job = jobs.rbegin(); job != jobs.rend(); ++job) {
            if (!filter.Takes(*job)) continue;
            numbers.push_back(job->number());
            ++counts[job->state()];
          }
          ++tried;
          EXPECT_EQ(Numbers(filter, INT64_MAX, 100), numbers) << owner << array << text;
          EXPECT_EQ(*store_->CountEnded(filter), counts) << owner << array << text;
        }
      }
    }
  }
  EXPECT_EQ(tried, 96);
}

TEST_P(StoreConformance, AProgramIsBytesUnderAHashAndIsWrittenOnce) {
  const std::string bytes("\0\x01 binary \0", 11);
  ASSERT_TRUE(store_->Commit({.programs = {{.sha256 = "ab", .bytes = bytes}}}).ok());
  ASSERT_TRUE(store_->Commit({.programs = {{.sha256 = "ab", .bytes = bytes}}}).ok());
  EXPECT_EQ(*store_->GetProgram("ab"), bytes);
}

TEST_P(StoreConformance, EventsAreReadFromASequenceOn) {
  Transaction transaction{.durability = Durability::kBuffered};
  for (int i = 1; i <= 5; ++i) transaction.events.push_back(MakeEvent("a-1", i));
  transaction.events.push_back(MakeEvent("b-2", 1));
  ASSERT_TRUE(store_->Commit(transaction).ok());
  const auto events = store_->Events("a-1", 2, 2);
  ASSERT_EQ(events->size(), 2);
  EXPECT_EQ((*events)[0].sequence(), 3);
  EXPECT_EQ((*events)[1].step().step(), 40);
  EXPECT_EQ(*store_->LastSequence("a-1"), 5);
  EXPECT_EQ(*store_->LastSequence("b-2"), 1);
}

TEST_P(StoreConformance, OfWhatWasLearnedOnOneWorkerOfOneShapeTheLargestIsKept) {
  EXPECT_TRUE(store_->Learned()->empty());
  ASSERT_TRUE(store_->Commit({.learned = {{"w1", "s", 7}, {"w0", "t", 5}}}).ok());
  ASSERT_TRUE(store_->Commit({.learned = {{"w1", "s", 3}, {"w0", "s", 4}, {"w0", "t", 6}}}).ok());
  const auto learned = store_->Learned();
  ASSERT_EQ(learned->size(), 3);
  EXPECT_EQ((*learned)[0].worker + (*learned)[0].shape, "w0s");
  EXPECT_EQ((*learned)[1].worker + (*learned)[1].shape, "w0t");
  EXPECT_EQ((*learned)[1].external_bytes, 6);
  EXPECT_EQ((*learned)[2].external_bytes, 7) << "the smaller one came later";
}

TEST_P(StoreConformance, WhatATransactionLearnedIsAbortedWithIt) {
  const Transaction aborted{.jobs = {MakeJob("a-1", 7)}, .learned = {{"w0", "s", 5}}};
  EXPECT_EQ(store_->Commit(aborted).code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(store_->Learned()->empty());
}

TEST_P(StoreConformance, AHistoryTakesThePlaceOfTheOneBefore) {
  EXPECT_EQ(*store_->GetHistory("a-1"), "");
  ASSERT_TRUE(store_->Commit({.histories = {{"a-1", "one"}, {"b-2", "other"}}}).ok());
  ASSERT_TRUE(store_->Commit({.histories = {{"a-1", "two"}}}).ok());
  EXPECT_EQ(*store_->GetHistory("a-1"), "two");
  EXPECT_EQ(*store_->GetHistory("b-2"), "other");
}

TEST_P(StoreConformance, OfEachOwnerTheNewestUsageIsKept) {
  EXPECT_TRUE(store_->Usages()->empty());
  const OwnerUsage first{.owner = "bob", .device_ms = 1, .unix_ms = 10};
  const OwnerUsage again{.owner = "bob", .device_ms = int64_t{1} << 40, .unix_ms = 20};
  const OwnerUsage other{.owner = "alice", .device_ms = 3, .unix_ms = 15};
  ASSERT_TRUE(store_->Commit({.usages = {first, other}}).ok());
  ASSERT_TRUE(store_->Commit({.usages = {again}}).ok());
  ASSERT_EQ(store_->Usages()->size(), 2);
  EXPECT_EQ((*store_->Usages())[0].owner, "alice");
  EXPECT_EQ((*store_->Usages())[1].device_ms, int64_t{1} << 40);
  EXPECT_EQ((*store_->Usages())[1].unix_ms, 20);
}

TEST_P(StoreConformance, ADrainIsKeptUntilItIsTakenBack) {
  EXPECT_TRUE(store_->Drains()->empty());
  v1::Drain first, again, other;
  first.set_node("w1");
  again.set_node("w1");
  again.set_reason("kernel update");
  other.set_node("w0");
  ASSERT_TRUE(store_->Commit({.drains = {first, other}}).ok());
  ASSERT_TRUE(store_->Commit({.drains = {again}}).ok());
  ASSERT_EQ(store_->Drains()->size(), 2);
  EXPECT_EQ((*store_->Drains())[0].node(), "w0");
  EXPECT_EQ((*store_->Drains())[1].reason(), "kernel update");
  ASSERT_TRUE(store_->Commit({.undrained = {"w0"}}).ok());
  ASSERT_EQ(store_->Drains()->size(), 1);
  EXPECT_EQ((*store_->Drains())[0].node(), "w1");
}

TEST_P(StoreConformance, OnlyTheNewestEventsOfAJobAreKept) {
  Transaction transaction{.durability = Durability::kBuffered};
  for (int64_t i = 1; i <= kEventsKeptPerJob + 100; ++i) {
    transaction.events.push_back(MakeEvent("a-1", i));
  }
  ASSERT_TRUE(store_->Commit(transaction).ok());
  const auto events = store_->Events("a-1", 0, 2 * kEventsKeptPerJob);
  ASSERT_EQ(static_cast<int64_t>(events->size()), kEventsKeptPerJob);
  EXPECT_EQ(events->front().sequence(), 101);
}

TEST_P(StoreConformance, JobsWhoseEventsComeTogetherKeepEachTheirNewest) {
  Transaction transaction{.durability = Durability::kBuffered};
  for (int64_t i = 1; i <= kEventsKeptPerJob + 2; ++i) {
    transaction.events.push_back(MakeEvent("a-1", i));
    if (i % 1000 == 0) transaction.events.push_back(MakeEvent("b-2", i / 1000));
  }
  ASSERT_TRUE(store_->Commit(transaction).ok());
  ASSERT_TRUE(store_->Commit({.events = {MakeEvent("b-2", 5)}}).ok());
  EXPECT_EQ(store_->Events("a-1", 0, 2 * kEventsKeptPerJob)->front().sequence(), 3);
  const auto others = store_->Events("b-2", 0, 100);
  ASSERT_EQ(others->size(), 5u);
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ((*others)[static_cast<size_t>(i)].sequence(), i + 1);
}

}  // namespace terrace
