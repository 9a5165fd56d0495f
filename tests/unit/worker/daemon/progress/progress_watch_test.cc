// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/progress/progress_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/fake_clock.h"

namespace terrace {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

// Rank 1 of two: it computes twice, and what it has made is summed between, on a stream of its own.
class ProgressWatchTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / absl::StrCat("progress-", getpid());
    fs::create_directories(folder_ / "7/task/7");
    WriteProcess('S', 0);
    program_.mutable_grid()->set_data_replica(2);
    program_.add_streams()->set_kind(v1::COMPUTE);
    program_.add_streams()->set_kind(v1::COLLECTIVE);
    program_.mutable_streams(0)->set_name("compute");
    program_.mutable_streams(1)->set_name("data");
    v1::Group* group = program_.add_groups();
    group->set_name("data");
    group->add_axes(v1::DATA_REPLICA);
    v1::Sequence* train = program_.add_sequences();
    train->set_name("train");
    Add(train, 0, "forward")->mutable_compute();
    Add(train, 1, "all_reduce gradient")->mutable_collective();
    Add(train, 0, "update")->mutable_compute();
    train->mutable_instructions(1)->add_waits(0);
    train->mutable_instructions(2)->add_waits(1);
    config_.set_job("a-1");
    config_.set_rank(1);
    config_.set_program_path(folder_ / "program.pb");
    config_.set_program_sha256("0123");
    config_.set_run_directory(folder_);
    std::ofstream(config_.program_path()) << program_.SerializeAsString();
    flight_ = FlightWriter::Create(config_.run_directory(), "0123", 2, &clock_).value();
    watch_ = std::make_unique<ProgressWatch>(&config_, ProcessReader(7, folder_.string()),
                                             &programs_, &clock_);
  }
  void TearDown() override {
    flight_.reset();
    fs::remove_all(folder_);
  }

  static v1::Instruction* Add(v1::Sequence* sequence, uint32_t stream, const std::string& text) {
    v1::Instruction* instruction = sequence->add_instructions();
    instruction->set_id(sequence->instructions_size() - 1);
    instruction->set_stream(stream);
    instruction->set_text(text);
    instruction->set_layer(-1);
    instruction->set_micro_batch(-1);
    return instruction;
  }
  void WriteProcess(char state, int64_t io_bytes) {
    for (const char* file : {"7/stat", "7/task/7/stat"})
      std::ofstream(folder_ / file) << "7 (rank) " << state << " 1 7 7 0 -1 0 11 0 1 0 5 6";
    std::ofstream(folder_ / "7/io") << "rchar: " << io_bytes << "\nwchar: 0\n";
  }
  void Look(int64_t ms) {
    clock_.AdvanceMillis(ms);
    watch_->Sample(metrics_);
  }
  void Stand(int seconds) {
    for (int i = 0; i < seconds; ++i) Look(1000);
  }
  // It executes the first step, and has finished so much of its streams.
  void Begin(int32_t computed, int32_t summed) {
    flight_->SetStep(1);
    flight_->Enter(FlightActivity::kStep);
    flight_->Begin(0);
    flight_->progress()[0].finished.store(computed);
    flight_->progress()[1].finished.store(summed);
  }

  fs::path folder_;
  v1::Program program_;
  v1::RankConfig config_;
  v1::RankMetrics metrics_;
  FakeClock clock_;
  WatchedPrograms programs_;
  std::unique_ptr<FlightWriter> flight_;
  std::unique_ptr<ProgressWatch> watch_;
};

TEST_F(ProgressWatchTest, ARankStandsFromItsLastInstructionOn) {
  Begin(0, 0);
  Look(1000);
  EXPECT_EQ(watch_->place().standing_ms(), 0);
  Stand(3);
  EXPECT_GE(watch_->place().standing_ms(), 2000);
  flight_->progress()[0].finished.store(1);
  Look(1000);
  EXPECT_EQ(watch_->place().standing_ms(), 0) << "it has finished one";
  EXPECT_EQ(watch_->place().process(), v1::PROCESS_STATE_UNSPECIFIED) << "nobody asks";
}

TEST_F(ProgressWatchTest, APlaceNamesWhatNeedsNobodyElse) {
  Begin(0, 0);
  Stand(5);
  const v1::RankPlace& place = watch_->place();
  EXPECT_EQ(place.step(), 1);
  EXPECT_EQ(place.activity(), v1::ACTIVITY_STEP);
  EXPECT_EQ(place.sequence(), "train");
  EXPECT_EQ(place.instruction(), "0 forward");
  ASSERT_EQ(place.groups_size(), 1);
  EXPECT_EQ(place.groups(0).group(), "data.0") << "named by its first member";
  EXPECT_FALSE(place.groups(0).arrived()) << "it waits for the forward pass";
  EXPECT_EQ(place.process(), v1::PROCESS_WAITING);
}

TEST_F(ProgressWatchTest, APlaceNamesTheExchangeThatItStandsIn) {
  Begin(1, 0);
  Stand(5);
  const v1::RankPlace& place = watch_->place();
  EXPECT_EQ(place.instruction(), "") << "the update waits for the sum";
  ASSERT_EQ(place.groups_size(), 1);
  EXPECT_TRUE(place.groups(0).arrived());
  EXPECT_EQ(place.groups(0).finished(), 0);
  EXPECT_EQ(place.groups(0).instruction(), "1 all_reduce gradient");
  EXPECT_THAT(watch_->Page(),
              HasSubstr("compute  1 finished  2 update  (waits for another stream)"));
}

TEST_F(ProgressWatchTest, AStoppedProcessIsSeen) {
  Begin(1, 0);
  WriteProcess('T', 0);
  Stand(5);
  EXPECT_EQ(watch_->place().process(), v1::PROCESS_STOPPED);
  EXPECT_EQ(watch_->place().process_words(), "is stopped by a signal");
}

TEST_F(ProgressWatchTest, ADaemonThatIsLateBlamesNobody) {
  Begin(1, 0);
  Stand(3);
  const int64_t before = watch_->place().standing_ms();
  Look(60'000);
  EXPECT_EQ(watch_->place().standing_ms(), before + kProgressSampleMs);
}

TEST_F(ProgressWatchTest, WhoReadsAndWritesWorks) {
  Begin(1, 0);
  for (int64_t second = 1; second < 20; ++second) {
    WriteProcess('D', second * kMovedBytesMin);
    Stand(1);
    EXPECT_EQ(watch_->place().standing_ms(), 0) << second;
  }
  Stand(4);
  EXPECT_GE(watch_->place().standing_ms(), 3000);
}

TEST_F(ProgressWatchTest, ActivitiesBetweenSequencesAreTold) {
  Begin(3, 2);
  flight_->End();
  flight_->Enter(FlightActivity::kAgreeing);
  Stand(5);
  EXPECT_EQ(watch_->place().activity(), v1::ACTIVITY_AGREEING);
  EXPECT_EQ(watch_->place().places(), 2);
  EXPECT_EQ(watch_->place().sequence(), "");
  EXPECT_EQ(watch_->place().groups_size(), 0);
}

TEST_F(ProgressWatchTest, SharesAreOfTheLastSecondsOnceTheseAreThere) {
  metrics_.set_step_seconds(0.5);
  for (int i = 0; i < 20; ++i) {
    metrics_.set_compute_seconds(0.75 * i);
    metrics_.set_collective_exposed_seconds(0.25 * i);
    Stand(1);
    if (i < 5) {
      EXPECT_EQ(watch_->place().computing_ratio(), 0) << "not known yet";
    }
  }
  EXPECT_NEAR(watch_->place().computing_ratio(), 0.75, 1e-6);
  EXPECT_NEAR(watch_->place().waiting_ratio(), 0.25, 1e-6);
}

}  // namespace
}  // namespace terrace
