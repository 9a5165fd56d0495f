// SPDX-License-Identifier: Apache-2.0
#include "worker/flight/flight_recorder.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/fake_clock.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

class FlightRecorderTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("flight-" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override {
    SettleFlight(folder_.string()).IgnoreError();
    fs::remove_all(folder_);
  }
  std::unique_ptr<FlightWriter> Create(size_t streams) {
    auto writer = FlightWriter::Create(folder_.string(), std::string(64, 'a'), streams, &clock_);
    EXPECT_TRUE(writer.ok()) << writer.status();
    return *std::move(writer);
  }
  FlightReader Open() {
    auto reader = FlightReader::Open(folder_.string());
    EXPECT_TRUE(reader.ok()) << reader.status();
    return *std::move(reader);
  }

  fs::path folder_;
  FakeClock clock_;
};

TEST_F(FlightRecorderTest, AReaderSeesWhatTheWriterSaysWhileItRuns) {
  const auto writer = Create(3);
  writer->Reserved(v1::HOST, 100);
  writer->Reserved(v1::HOST, 20);
  writer->SetPinned(64);
  writer->Prepared(7);
  writer->SetStep(5);
  writer->Begin(1);
  writer->progress()[2].finished.store(41);
  const auto state = Open().State();
  ASSERT_TRUE(state.ok()) << state.status();
  EXPECT_EQ(state->program_sha256, std::string(64, 'a'));
  EXPECT_EQ(state->pid, getpid());
  EXPECT_EQ(state->step, 5);
  EXPECT_EQ(state->sequence, 1);
  EXPECT_EQ(state->finished, (std::vector<int32_t>{0, 0, 41}));
  EXPECT_EQ(state->reserved_bytes[v1::HOST], 120);
  EXPECT_EQ(state->pinned_bytes, 64);
  EXPECT_EQ(state->external_bytes, 7);
  EXPECT_GT(state->prepared_anonymous_bytes, 0);
}

TEST_F(FlightRecorderTest, ActivitiesAreCountedAndSequencesToo) {
  const auto writer = Create(1);
  EXPECT_EQ(Open().State()->activity, FlightActivity::kPreparing);
  writer->Enter(FlightActivity::kStep);
  const uint64_t before = Open().State()->changes;
  writer->Begin(0);
  writer->End();
  writer->Enter(FlightActivity::kAgreeing);
  EXPECT_EQ(Open().State()->activity, FlightActivity::kAgreeing);
  EXPECT_EQ(Open().State()->places, 2);
  EXPECT_GT(Open().State()->changes, before);
}

TEST_F(FlightRecorderTest, ANewSequenceStartsAtZeroAndItsEndLeavesNone) {
  const auto writer = Create(1);
  writer->Begin(0);
  writer->progress()[0].finished.store(9);
  writer->Begin(1);
  EXPECT_EQ(Open().State()->finished[0], 0);
  writer->End();
  EXPECT_EQ(Open().State()->sequence, kFlightNoSequence);
}

TEST_F(FlightRecorderTest, TheNewestEventsAreKeptInOrder) {
  const auto writer = Create(0);
  for (size_t i = 0; i < kFlightEvents + 10; ++i)
    writer->Record(FlightEventKind::kRetry, v1::DEVICE, static_cast<int64_t>(i));
  const auto events = Open().Events();
  ASSERT_TRUE(events.ok());
  ASSERT_EQ(events->size(), kFlightEvents);
  EXPECT_EQ(events->front().bytes, 10);
  EXPECT_EQ(events->back().bytes, static_cast<int64_t>(kFlightEvents) + 9);
  EXPECT_GT(events->back().anonymous_bytes, 0);
  EXPECT_GE(events->back().resident_bytes, events->back().anonymous_bytes);
}

TEST_F(FlightRecorderTest, StepsAreSampledNoMoreOftenThanSaid) {
  const auto writer = Create(0);
  for (int step = 1; step <= 5; ++step) {
    writer->SetStep(step);
    clock_.AdvanceMillis(kFlightSampleMs / 2);
    writer->StepDone();
  }
  const auto events = Open().Events();
  ASSERT_TRUE(events.ok());
  ASSERT_EQ(events->size(), 3u);  // the first, then every second
  EXPECT_EQ((*events)[1].step, 3);
}

TEST_F(FlightRecorderTest, EventsOfManyThreadsAreNeverMixed) {
  const auto writer = Create(0);
  std::atomic<bool> stop = false;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t i = 0; !stop; ++i) {
        writer->Record(static_cast<FlightEventKind>(t + 3), static_cast<v1::Tier>(t), 3 * i + t);
        // Far more often than memory events happen, but no thread is overtaken by a whole ring.
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    });
  }
  const FlightReader reader = Open();
  for (int round = 0; round < 200; ++round) {
    const auto events = reader.Events();
    ASSERT_TRUE(events.ok());
    for (const FlightEvent& event : *events) {
      const auto thread = static_cast<uint32_t>(event.bytes % 3);
      ASSERT_EQ(event.tier, thread);
      ASSERT_EQ(event.kind, static_cast<FlightEventKind>(thread + 3));
    }
  }
  stop = true;
}

TEST_F(FlightRecorderTest, StepsAreKeptUntilTheyAreTold) {
  const auto writer = Create(2);
  EXPECT_TRUE(Open().UntoldSteps()->empty());
  for (int64_t step = 7; step <= 12; ++step) writer->KeepStep(step, "step " + std::to_string(step));
  writer->SetToldStep(10);
  const auto steps = Open().UntoldSteps();
  ASSERT_EQ(steps->size(), 2u);
  EXPECT_EQ(steps->front().step, 11);
  EXPECT_EQ(steps->back().message, "step 12");
  ASSERT_TRUE(MarkStepsTold(folder_.string(), 11).ok());
  EXPECT_EQ(Open().UntoldSteps()->front().step, 12);
}

TEST_F(FlightRecorderTest, TheNewestStepsAreKeptAndThoseTooLongAreNot) {
  const auto writer = Create(1);
  const auto last = static_cast<int64_t>(kFlightSteps) + 3;
  for (int64_t step = 1; step <= last; ++step) writer->KeepStep(step, "s");
  writer->KeepStep(last + 1, std::string(kFlightStepBytesMax, 'x'));
  writer->KeepStep(last + 2, std::string(kFlightStepBytesMax + 1, 'x'));
  const auto steps = Open().UntoldSteps();
  ASSERT_EQ(steps->size(), kFlightSteps);
  EXPECT_EQ(steps->front().step, 5);
  EXPECT_EQ(steps->back().step, last + 1);
  EXPECT_EQ(steps->back().message, std::string(kFlightStepBytesMax, 'x'));
}

TEST_F(FlightRecorderTest, WhatWasRecordedSurvivesSigkill) {
  const pid_t child = fork();
  if (child == 0) {
    auto writer = FlightWriter::Create(folder_.string(), "", 2, &clock_);
    if (!writer.ok()) _exit(1);
    (*writer)->SetStep(3);
    (*writer)->Begin(0);
    (*writer)->progress()[1].finished.store(812);
    (*writer)->Record(FlightEventKind::kOom, v1::DEVICE, 4096);
    (*writer)->KeepStep(2, "second");
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  for (int settled = 0; settled < 2; ++settled) {
    const FlightReader reader = Open();
    EXPECT_EQ(reader.State()->pid, child);
    EXPECT_EQ(reader.State()->step, 3);
    EXPECT_EQ(reader.State()->finished, (std::vector<int32_t>{0, 812}));
    EXPECT_EQ(reader.Events()->back().kind, FlightEventKind::kOom);
    EXPECT_EQ(reader.UntoldSteps()->back().message, "second");
    ASSERT_TRUE(SettleFlight(folder_.string()).ok());
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(folder_ / "flight")));
  }
}

TEST_F(FlightRecorderTest, ItsEndFreesTheSharedMemoryAndLeavesAFile) {
  fs::path shared;
  {
    const auto writer = Create(1);
    if (fs::is_symlink(folder_ / "flight")) shared = fs::read_symlink(folder_ / "flight");
    writer->SetStep(8);
  }
  EXPECT_TRUE(shared.empty() || !fs::exists(shared));
  EXPECT_EQ(Open().State()->step, 8);
}

TEST_F(FlightRecorderTest, BadFilesAreRefused) {
  EXPECT_EQ(FlightReader::Open(folder_.string()).status().code(), absl::StatusCode::kNotFound);
  std::ofstream(folder_ / "flight") << "short";
  EXPECT_EQ(FlightReader::Open(folder_.string()).status().code(), absl::StatusCode::kDataLoss);
  { const auto writer = Create(1); }
  fs::resize_file(folder_ / "flight", fs::file_size(folder_ / "flight") - 1);
  EXPECT_EQ(FlightReader::Open(folder_.string()).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(
      FlightWriter::Create(folder_.string(), "", kFlightStreamsMax + 1, &clock_).status().code(),
      absl::StatusCode::kInvalidArgument);
}

TEST_F(FlightRecorderTest, WithoutAFolderTheCountersStillCount) {
  const auto writer = FlightWriter::Create("", "", 4, &clock_);
  ASSERT_TRUE(writer.ok());
  EXPECT_EQ((*writer)->progress().size(), 4u);
  (*writer)->Begin(0);
  (*writer)->Record(FlightEventKind::kRetry, v1::DEVICE, 1);
}

TEST(ProcessMemoryTest, IsOfOneProcessAsLongAsItLives) {
  EXPECT_GT(ProcessMemory(0).Read()->anonymous, 0);
  EXPECT_EQ(ProcessMemory(1 << 30).Read(), std::nullopt);
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const ProcessMemory memory(child);
  EXPECT_GT(memory.Read()->resident, 0);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(memory.Read(), std::nullopt);
}

}  // namespace
}  // namespace terrace
