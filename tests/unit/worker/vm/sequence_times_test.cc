// SPDX-License-Identifier: Apache-2.0
#include "worker/vm/sequence_times.h"

#include <memory>
#include <vector>

#include "gtest/gtest.h"

namespace terrace {
namespace {

// A sequence that was executed on paper: times in milliseconds.
class Executed {
 public:
  explicit Executed(std::vector<v1::StreamKind> kinds) {
    for (v1::StreamKind kind : kinds) sequence_.streams.push_back({.kind = kind});
  }

  PreparedInstruction& Add(uint32_t stream, int start_ms, int end_ms,
                           std::vector<WaitPoint> waits = {}) {
    PreparedInstruction& instruction = sequence_.streams[stream].instructions.emplace_back();
    instruction.source = sources_.emplace_back(std::make_unique<v1::Instruction>()).get();
    instruction.waits = std::move(waits);
    sequence_.streams[stream].slices.push_back(
        {(kStart + start_ms) * 1'000'000, (kStart + end_ms) * 1'000'000});
    return instruction;
  }
  void Copy(v1::CopyKind kind, int64_t bytes, uint32_t stream, int start_ms, int end_ms,
            std::vector<WaitPoint> waits = {}) {
    PreparedInstruction& instruction = Add(stream, start_ms, end_ms, std::move(waits));
    instruction.copied_bytes = bytes;
    sources_.back()->mutable_copy()->set_kind(kind);
  }
  // Needs other ranks.
  void Collective(uint32_t stream, int start_ms, int end_ms, std::vector<WaitPoint> waits = {}) {
    Add(stream, start_ms, end_ms, std::move(waits)).group = kSomeGroup;
  }

  const PreparedSequence& sequence() const { return sequence_; }
  SequenceTimes times() const { return Times(sequence_); }

 private:
  static constexpr int64_t kStart = 1000;
  // Told from null, never called.
  static inline Communicator* const kSomeGroup = reinterpret_cast<Communicator*>(8);
  PreparedSequence sequence_;
  std::vector<std::unique_ptr<v1::Instruction>> sources_;
};

TEST(SequenceTimesTest, AWaitIsChargedToWhatItWaitedFor) {
  Executed run({v1::COMPUTE, v1::HOST_TO_DEVICE, v1::COLLECTIVE});
  run.Add(0, 0, 10);
  run.Copy(v1::TO_DEVICE, 100, 1, 5, 30);
  run.Add(0, 30, 40, {{1, 1}});  // 20 exposed of 25
  run.Collective(2, 35, 60);
  run.Add(0, 60, 70, {{2, 1}});  // 20 exposed of 25
  const SequenceTimes times = run.times();
  EXPECT_DOUBLE_EQ(times.total, 0.070);
  EXPECT_DOUBLE_EQ(times.compute, 0.030);
  EXPECT_DOUBLE_EQ(times.offload, 0.025);
  EXPECT_DOUBLE_EQ(times.offload_exposed, 0.020);
  EXPECT_DOUBLE_EQ(times.collective, 0.025);
  EXPECT_DOUBLE_EQ(times.collective_exposed, 0.020);
}

// Gather on top of fetch: the gather is late because the read was.
TEST(SequenceTimesTest, TheCauseOfALateCollectiveIsCharged) {
  Executed run({v1::COMPUTE, v1::NVME_READ, v1::HOST_TO_DEVICE, v1::COLLECTIVE});
  run.Add(0, 0, 10);
  run.Copy(v1::NVME_LOAD, 4096, 1, 0, 50);
  run.Copy(v1::TO_DEVICE, 4096, 2, 50, 60, {{1, 1}});
  run.Collective(3, 60, 75, {{2, 1}});
  run.Add(0, 75, 80, {{3, 1}});
  const SequenceTimes times = run.times();
  EXPECT_DOUBLE_EQ(times.offload_exposed, 0.050);     // 10 to 60
  EXPECT_DOUBLE_EQ(times.collective_exposed, 0.015);  // 60 to 75
}

TEST(SequenceTimesTest, WorkOfTheSameStreamThatHadToEndBeforeCounts) {
  Executed run({v1::COMPUTE, v1::NVME_READ});
  run.Add(0, 0, 10);
  run.Copy(v1::NVME_LOAD, 1, 1, 0, 40);   // somebody else's
  run.Copy(v1::NVME_LOAD, 1, 1, 40, 50);  // ours
  run.Add(0, 50, 60, {{1, 2}});
  EXPECT_DOUBLE_EQ(run.times().offload_exposed, 0.040);
}

TEST(SequenceTimesTest, WhatIsHiddenBehindComputationIsNotExposed) {
  Executed run({v1::COMPUTE, v1::NVME_WRITE});
  run.Add(0, 0, 100);
  run.Copy(v1::NVME_STORE, 1, 1, 10, 90);
  run.Add(0, 100, 110, {{1, 1}});
  EXPECT_EQ(run.times().offload_exposed, 0);
}

TEST(SequenceTimesTest, TheEndWaitsForWhatIsStillUnderWay) {
  Executed run({v1::COMPUTE, v1::HOST_COMPUTE, v1::NVME_WRITE});
  run.Add(0, 0, 10);
  run.Add(1, 10, 40, {{0, 1}});                      // the optimizer on the host
  run.Copy(v1::NVME_STORE, 8, 2, 40, 70, {{1, 1}});  // and its results
  const SequenceTimes times = run.times();
  EXPECT_DOUBLE_EQ(times.offload_exposed, 0.060);
  EXPECT_DOUBLE_EQ(times.offload, 0.060);
  EXPECT_DOUBLE_EQ(times.compute, 0.010);
}

TEST(SequenceTimesTest, AnEmptySequenceTakesNoTime) {
  EXPECT_EQ(Executed({v1::COMPUTE}).times().total, 0);
  EXPECT_EQ(Seconds(Executed({v1::COMPUTE}).sequence()), 0);
}

TEST(SequenceTimesTest, AnExecutionOfAnotherLengthHasTheSameShares) {
  Executed run({v1::COMPUTE, v1::HOST_TO_DEVICE, v1::COLLECTIVE});
  run.Add(0, 0, 10);
  run.Copy(v1::TO_DEVICE, 100, 1, 5, 30);
  run.Add(0, 30, 40, {{1, 1}});
  run.Collective(2, 35, 60);
  run.Add(0, 60, 80, {{2, 1}});
  EXPECT_DOUBLE_EQ(Seconds(run.sequence()), 0.080);
  const SequenceTimes half = Scaled(run.times(), 0.5);
  EXPECT_DOUBLE_EQ(half.total, 0.040);
  EXPECT_DOUBLE_EQ(half.compute, 0.020);
  EXPECT_DOUBLE_EQ(half.collective, 0.0125);
  EXPECT_DOUBLE_EQ(half.collective_exposed, 0.010);
  EXPECT_DOUBLE_EQ(half.offload, 0.0125);
  EXPECT_DOUBLE_EQ(half.offload_exposed, 0.010);
}

TEST(SequenceTimesTest, TrafficIsAddedByKindAndSkipsWhatDidNotMove) {
  Executed run({v1::COMPUTE, v1::NVME_READ, v1::DEVICE_TO_HOST});
  run.Copy(v1::NVME_LOAD, 4096, 1, 0, 10);
  run.Copy(v1::NVME_LOAD, 8192, 1, 10, 30);
  run.Copy(v1::TO_HOST, 512, 2, 0, 5);
  TrafficByKind traffic{};
  AddTraffic(run.sequence(), 1, &traffic);
  AddTraffic(run.sequence(), 0.5, &traffic);
  const auto lines = TrafficLines(traffic);
  ASSERT_EQ(lines.size(), 2);
  EXPECT_EQ(lines[0].tier(), v1::HOST);
  EXPECT_TRUE(lines[0].write());
  EXPECT_EQ(lines[0].bytes(), 1024);
  EXPECT_EQ(lines[1].tier(), v1::NVME);
  EXPECT_FALSE(lines[1].write());
  EXPECT_EQ(lines[1].bytes(), 24576);
  EXPECT_DOUBLE_EQ(lines[1].seconds(), 0.045) << "the second took half as long";
}

}  // namespace
}  // namespace terrace
