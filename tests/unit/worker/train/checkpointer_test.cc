// SPDX-License-Identifier: Apache-2.0
#include "worker/train/checkpointer.h"

#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/memory_region.h"
#include "tests/support/request_region.h"
#include "tests/unit/worker/checkpoint/layout_fixture.h"
#include "worker/rank/drive_region.h"
#include "worker/reporting/failure.h"

namespace terrace {
namespace {

constexpr int64_t kElements = 2 << 20;

class CheckpointerTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) / "checkpointer_test";
    std::filesystem::remove_all(folder_);
    spec_.mutable_checkpoint()->set_directory(folder_);
    spec_.mutable_model()->set_config_json("{}");
    spec_.mutable_data()->set_tokenizer("bytes");
    program_.add_arenas()->set_bytes(3 * kElements * 4);
    for (int i = 0; i < 3; ++i) {
      v1::Buffer* buffer = program_.add_buffers();
      buffer->set_id(i);
      buffer->set_bytes(kElements * 4);
      buffer->set_offset(i * kElements * 4);
      buffer->set_lifetime(v1::PERSISTENT);
      v1::StateRange* range = program_.add_state();
      range->set_tensor("w");
      range->set_kind(static_cast<v1::StateKind>(v1::WEIGHT + i));
      range->add_shape(kElements);
      range->set_rows(1);
      range->set_columns(kElements);
      range->set_row_stride(kElements);
      range->set_buffer(i);
      range->set_dtype(v1::F32);
    }
    v1::Initializer* initializer = program_.add_initializers();
    initializer->set_tensor("w");
    initializer->add_shape(kElements);
    memory_.assign(3 * kElements, 1.0f);
    region_ = MemoryRegion(std::as_writable_bytes(std::span(memory_)));
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  RankState State() const { return {program_, {}, regions_}; }

  std::filesystem::path folder_;
  v1::JobSpec spec_;
  v1::Program program_;
  std::vector<float> memory_;
  MemoryRegion region_;
  std::vector<Region*> regions_ = {&region_};
  const SystemClock clock_;
};

TEST_F(CheckpointerTest, TheFenceHoldsWritersBackUntilTheStateIsRead) {
  Checkpointer checkpointer(spec_, State(), nullptr, &clock_);
  for (int64_t step = 1; step <= 5; ++step) {
    checkpointer.Start(step, step * 100);
    checkpointer.WaitUntilUnread();
    std::fill(memory_.begin(), memory_.end(),
              static_cast<float>(step + 1));  // the optimizer's write
    const auto result = checkpointer.Finish();
    ASSERT_TRUE(result.has_value());
    ASSERT_TRUE(result->ok()) << result->status();
    EXPECT_GT((*result)->seconds, 0);
    EXPECT_GT((*result)->stall_seconds, 0);
    std::vector<float> restored(3 * kElements);
    MemoryRegion region(std::as_writable_bytes(std::span(restored)));
    Region* const regions[] = {&region};
    ASSERT_TRUE(ReadCheckpoint((*result)->info.path, {program_, {}, regions}, nullptr).ok());
    EXPECT_EQ(restored, std::vector<float>(3 * kElements, static_cast<float>(step)));
  }
}

TEST_F(CheckpointerTest, WithoutAWriteTheFenceIsOpenAndThereIsNoResult) {
  Checkpointer checkpointer(spec_, State(), nullptr, &clock_);
  checkpointer.WaitUntilUnread();
  EXPECT_FALSE(checkpointer.Poll().has_value());
  EXPECT_FALSE(checkpointer.Finish().has_value());
}

TEST_F(CheckpointerTest, AFailureSaysWhichStepAndCarriesItsReason) {
  spec_.mutable_checkpoint()->set_directory("/dev/null/checkpoints");
  Checkpointer checkpointer(spec_, State(), nullptr, &clock_);
  checkpointer.Start(12, 0);
  const auto result = checkpointer.Finish();
  ASSERT_TRUE(result.has_value());
  EXPECT_EQ(ReasonOf(result->status()), v1::REASON_CHECKPOINT_ERROR);
  EXPECT_THAT(std::string(result->status().message()), testing::HasSubstr("step 12"));
}

// ---- state on a drive that fails ----------------------------------------------------------------

const absl::Status kEio = absl::DataLossError(
    "nvme: cannot read 65536 bytes at 0 of /drive/.terrace-job-rank-1-0: Input/output error; name "
    "another folder in nvme.paths");

class FailingDriveTest : public CheckpointerTest {
 protected:
  void SetUp() override {
    CheckpointerTest::SetUp();
    requests_.emplace(std::as_writable_bytes(std::span(memory_)));
    requests_->FailAt(1, kEio);
    drive_.emplace(&*requests_);
    drive_regions_ = {&*drive_};
  }
  RankState OnDrive() const { return {program_, {}, drive_regions_}; }

  std::optional<RequestRegion> requests_;
  std::optional<DriveRegion> drive_;
  std::vector<Region*> drive_regions_;
};

TEST_F(FailingDriveTest, IsNamedAsSuchAndNotAsTheCheckpointsFault) {
  Checkpointer checkpointer(spec_, OnDrive(), nullptr, &clock_);
  checkpointer.Start(12, 0);
  const auto result = checkpointer.Finish();
  EXPECT_EQ(ReasonOf(result->status()), v1::REASON_RANK_DIED) << "the job may go on elsewhere";
  EXPECT_THAT(std::string(result->status().message()),
              testing::AllOf(testing::HasSubstr("cannot write the checkpoint of step 12"),
                             testing::HasSubstr(std::string(kEio.message()))));
  EXPECT_TRUE(ListCheckpoints(folder_.string())->empty());
}

TEST_F(FailingDriveTest, WhileStateIsReadOrMadeItIsTheDrivesFaultToo) {
  Checkpointer checkpointer(spec_, State(), nullptr, &clock_);
  checkpointer.Start(1, 0);
  const std::string path = checkpointer.Finish()->value().info.path;
  const absl::Status read = ReadCheckpoint(path, OnDrive(), nullptr).status();
  const absl::Status made = InitialiseWeights(1, OnDrive(), 1);
  for (const absl::Status& status : {read, made}) {
    EXPECT_EQ(ReasonOf(WithReason(status, v1::REASON_WEIGHTS_ERROR)), v1::REASON_RANK_DIED);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(std::string(kEio.message())));
  }
}

// Two tensor-parallel ranks, each with its own writer.
class TwoCheckpointersTest : public CheckpointerTest {
 protected:
  void SetUp() override {
    CheckpointerTest::SetUp();
    for (int rank = 0; rank < 2; ++rank) {
      writers_.push_back(
          std::make_unique<Checkpointer>(spec_, job_.rank(rank).state(), &at_[rank], &clock_));
    }
  }

  TestJob job_{{.name = "tp2", .tensor = 2}};
  ThreadPeers peers_{2};
  ThreadPeers::Peer at_[2] = {peers_.At(0), peers_.At(1)};
  std::vector<std::unique_ptr<Checkpointer>> writers_;
};

TEST_F(TwoCheckpointersTest, EachFenceOpensForItsOwnRankAndBothReportTheSameCheckpoint) {
  job_.Fill(&TestRank::Value);
  for (auto& writer : writers_) writer->Start(3, 30);
  for (int rank : {1, 0}) {
    writers_[rank]->WaitUntilUnread();
    job_.rank(rank).Dirty();  // the optimizer's write
  }
  for (auto& writer : writers_) {
    const auto result = writer->Finish();
    ASSERT_TRUE(result->ok()) << result->status();
    EXPECT_EQ((*result)->info.path, folder_ / "step-00000003");
    EXPECT_TRUE((*result)->info.complete);
    EXPECT_EQ((*result)->info.bytes, NewestCheckpoint(folder_.string())->bytes);
  }
  EXPECT_THAT(job_.Read(folder_ / "step-00000003"), testing::Each(absl::OkStatus()));
  job_.Expect(&TestRank::Value);
}

TEST_F(TwoCheckpointersTest, AFailureOfOneIsAFailureOfBothAndOpensBothFences) {
  job_.rank(1).program().mutable_initializers()->RemoveLast();
  for (auto& writer : writers_) writer->Start(3, 30);
  for (auto& writer : writers_) writer->WaitUntilUnread();
  for (auto& writer : writers_) {
    const auto result = writer->Finish();
    EXPECT_EQ(ReasonOf(result->status()), v1::REASON_CHECKPOINT_ERROR);
    EXPECT_THAT(std::string(result->status().message()),
                testing::HasSubstr("begun with other tensors"));
  }
  EXPECT_TRUE(ListCheckpoints(folder_.string())->empty());
}

TEST_F(TwoCheckpointersTest, ADriveThatFailsForOneIsThatForBoth) {
  TestJob job({.name = "tp2", .tensor = 2, .no_address = true});
  std::vector<std::unique_ptr<DriveRegion>> drives;
  std::vector<std::vector<Region*>> regions(2);
  std::vector<std::unique_ptr<Checkpointer>> writers;
  for (int rank = 0; rank < 2; ++rank) {
    drives.push_back(std::make_unique<DriveRegion>(&job.rank(rank).requests()));
    regions[rank] = {drives[rank].get()};
    RankState state = job.rank(rank).state();
    writers.push_back(std::make_unique<Checkpointer>(
        spec_, RankState{state.program, state.rank, regions[rank]}, &at_[rank], &clock_));
  }
  job.rank(1).requests().FailAt(1, kEio);
  for (auto& writer : writers) writer->Start(3, 30);
  for (auto& writer : writers) {
    const auto result = writer->Finish();
    EXPECT_EQ(ReasonOf(result->status()), v1::REASON_RANK_DIED);
    EXPECT_THAT(std::string(result->status().message()), testing::HasSubstr("nvme.paths"));
  }
}

TEST_F(TwoCheckpointersTest, APeerThatIsLostIsNoFaultOfTheCheckpoint) {
  writers_[0]->Start(3, 30);
  peers_.Leave();
  EXPECT_EQ(ReasonOf(writers_[0]->Finish()->status()), v1::REASON_RANK_DIED);
}

}  // namespace
}  // namespace terrace
