// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/memory/memory_watch.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tests/support/fake_clock.h"
#include "worker/flight/flight_recorder.h"
#include "worker/memory/arena.h"

namespace terrace {
namespace {

// One compute stream. Each sequence writes one step buffer and then another.
class MemoryWatchTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) / "memory_watch_test";
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    program_.add_arenas()->set_tier(v1::DEVICE);
    program_.mutable_arenas(0)->set_bytes(10'000);
    program_.add_streams()->set_kind(v1::COMPUTE);
    AddBuffer(100)->set_lifetime(v1::PERSISTENT);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  v1::Buffer* AddBuffer(int64_t bytes) {
    v1::Buffer* buffer = program_.add_buffers();
    buffer->set_id(program_.buffers_size() - 1);
    buffer->set_class_(v1::ACTIVATION);
    buffer->set_bytes(bytes);
    buffer->set_lifetime(v1::STEP);
    return buffer;
  }

  void AddSequence(const std::string& name, int64_t bytes) {
    const uint32_t buffer = AddBuffer(bytes)->id();
    v1::Sequence* sequence = program_.add_sequences();
    sequence->set_name(name);
    for (uint32_t i = 0; i < 2; ++i) {
      v1::Instruction* instruction = sequence->add_instructions();
      instruction->set_id(i);
      instruction->mutable_compute();
      v1::Operand* operand = instruction->add_operands();
      operand->set_buffer(buffer);
      operand->set_access(i == 0 ? v1::WRITE : v1::READ);
    }
  }

  MemoryWatch WatchOf(int64_t pid) {
    config_.set_program_path(folder_ / "program.pb");
    config_.set_program_sha256("0123");
    config_.set_run_directory(folder_);
    std::ofstream(config_.program_path()) << program_.SerializeAsString();
    flight_ = FlightWriter::Create(config_.run_directory(), "0123", 1, &clock_).value();
    return MemoryWatch(&config_, pid, {}, &programs_, &clock_);
  }

  v1::RankMemory Report() { return WatchOf(0).Report({}); }

  std::filesystem::path folder_;
  v1::Program program_;
  v1::RankConfig config_;
  const SystemClock clock_;
  WatchedPrograms programs_;
  std::unique_ptr<FlightWriter> flight_;
};

TEST_F(MemoryWatchTest, TheStepsPeakIsThatOfTheBucketThatNeedsMost) {
  AddSequence("train", 500);
  AddSequence("train/16", 700);
  AddSequence("train/8", 300);
  AddSequence("eval", 900);
  const v1::RankMemory memory = Report();
  EXPECT_EQ(memory.allocator().mode(), "planned");
  EXPECT_EQ(memory.allocator().step_peak_bytes(), 100 + 700);
  EXPECT_EQ(memory.allocator().allocated_bytes(), 100) << "between two steps";
}

TEST_F(MemoryWatchTest, TheHotLayersAreTheEightLargestOfAStep) {
  AddSequence("train", 500);
  AddSequence("eval", 9000);
  v1::Sequence* train = program_.mutable_sequences(0);
  for (uint32_t layer = 0; layer < 9; ++layer) {
    v1::Buffer* buffer = AddBuffer(100 + 10 * layer);
    buffer->set_name(absl::StrCat("mb0.layer", layer, ".attn"));
    v1::Instruction* instruction = train->add_instructions();
    *instruction = train->instructions(0);
    instruction->set_id(2 + layer);
    instruction->mutable_operands(0)->set_buffer(buffer->id());
  }
  MemoryWatch watch = WatchOf(0);
  const std::vector<HotLayer>& hot = watch.HotLayers();
  ASSERT_EQ(hot.size(), kHotLayersMax);
  EXPECT_EQ(hot[0].layer, "layer 0") << "its instruction's";
  EXPECT_EQ(hot[0].bytes, 500) << "an evaluation is no step";
  EXPECT_EQ(hot[1].layer, "layer 8");
  EXPECT_EQ(hot[1].bytes, 180);
  EXPECT_EQ(hot[7].layer, "layer 2");
}

TEST_F(MemoryWatchTest, WhatMovesIsLookedAtMoreOftenThanWhatDoesNot) {
  FakeClock clock;
  MemoryWatch watch(&config_, ::getpid(), {}, &programs_, &clock);
  const auto taken = [&watch] { return watch.Facts({}, "killed").samples.size(); };
  const auto wait = [](int64_t ms) { return absl::Milliseconds(ms); };
  EXPECT_EQ(watch.Sample(), wait(kProcessSampleMs));
  clock.AdvanceMillis(kProcessSampleMs);
  EXPECT_EQ(watch.Sample(), wait(kSteadyProcessSampleMs)) << "it holds what it held";
  clock.AdvanceMillis(100);
  EXPECT_EQ(watch.Sample(), wait(kSteadyProcessSampleMs - 100));
  EXPECT_EQ(taken(), 2) << "none is due";
  clock.AdvanceMillis(kSteadyProcessSampleMs - 150);
  const std::vector<char> more(64 << 20, 1);
  EXPECT_EQ(watch.Sample(), wait(kProcessSampleMs)) << "nearly due, and 64 MiB more";
  EXPECT_EQ(taken(), 3);
  clock.AdvanceMillis(kProcessSamplesKeptMs);
  watch.Sample();
  EXPECT_EQ(taken(), 2) << "the last and one that is just old enough to stay";
  EXPECT_EQ(WatchOf(0).Sample(), absl::InfiniteDuration());
}

// The wall clock may be set: samples still come, in time and not without end.
TEST_F(MemoryWatchTest, AClockThatIsSetBackNeitherStopsNorHoardsSamples) {
  FakeClock clock;
  MemoryWatch watch(&config_, ::getpid(), {}, &programs_, &clock);
  const auto newest_ms = [&watch] { return watch.Facts({}, "killed").samples.back().unix_ms; };
  watch.Sample();
  clock.AdvanceMillis(-3'600'000);
  EXPECT_LE(watch.Sample(), absl::Milliseconds(kSteadyProcessSampleMs));
  EXPECT_EQ(newest_ms(), clock.UnixMillis());
  for (size_t i = 0; i < 2 * kProcessSamplesKept; ++i) {
    clock.AdvanceMillis(kSteadyProcessSampleMs);
    watch.Sample();
    ASSERT_EQ(newest_ms(), clock.UnixMillis());
  }
  EXPECT_LE(watch.Facts({}, "killed").samples.size(), kProcessSamplesKept);
}

// Half of the arena has a second address: 64 MiB of memory that /proc/<pid>/statm counts as 96.
TEST_F(MemoryWatchTest, APageWithTwoAddressesIsHeldOnce) {
  constexpr int64_t kPage = 4096, kPages = 16 << 10;
  const PageRun run{.page = kPages / 4, .pages = kPages / 2};
  program_.mutable_arenas(0)->set_bytes(kPages * kPage);
  program_.mutable_arenas(0)->set_page_bytes(kPage);
  v1::PageRun* alias = program_.mutable_arenas(0)->add_aliases();
  alias->set_page(run.page);
  alias->set_pages(run.pages);
  const auto resident = [this](MemoryWatch* watch) {
    watch->Sample();
    return watch->Facts({}, "killed").samples.back().bytes.resident;
  };
  MemoryWatch before = WatchOf(::getpid());
  const int64_t without = resident(&before);

  auto arena = Arena::Reserve("terrace-arena-test",
                              {.bytes = kPages * kPage, .page_bytes = kPage, .runs = {run}});
  ASSERT_TRUE(arena.ok()) << arena.status();
  arena->Touch(1);
  flight_->Reserved(v1::DEVICE, kPages * kPage);
  MemoryWatch after(&config_, ::getpid(), {}, &programs_, &clock_);
  const int64_t by_the_kernel = ProcessMemory(0).Read()->resident;
  EXPECT_NEAR(static_cast<double>(resident(&after) - without), kPages * kPage, 4 << 20);
  EXPECT_NEAR(static_cast<double>(by_the_kernel - without), kPages * kPage * 3 / 2, 4 << 20);
}

}  // namespace
}  // namespace terrace
