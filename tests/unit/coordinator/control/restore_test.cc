// Copies of a store that is in use, and stores that are restored from them.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/control/restore.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/store/sqlite_store.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class RestoreTest : public testing::Test {
 protected:
  static std::string MakeFolder() {
    std::string folder = testing::TempDir() + "restore_XXXXXX";
    return mkdtemp(folder.data());
  }
  ~RestoreTest() override { std::filesystem::remove_all(folder_); }

  static v1::Job Job(const std::string& id, v1::JobState state, int64_t epoch) {
    v1::Job job;
    job.set_id(id);
    job.set_state(state);
    job.set_epoch(epoch);
    return job;
  }
  // A store with jobs in three states and a program of several pages.
  void Fill(SqliteStore& store) const {
    Transaction transaction;
    transaction.jobs = {Job("a-1", v1::RUNNING, 3), Job("b-2", v1::QUEUED, 0),
                        Job("c-3", v1::SUCCEEDED, 1)};
    transaction.programs = {{.sha256 = "p", .bytes = std::string(3 << 20, 'x')}};
    ASSERT_TRUE(store.Commit(transaction).ok());
  }
  absl::StatusOr<Restored> Restore(bool replace = false) const {
    return RestoreStore({.copy = copy_, .state_directory = target_, .replace = replace});
  }

  const std::string folder_ = MakeFolder();
  const std::string copy_ = folder_ + "/copy";
  const std::string target_ = folder_ + "/target";
};

TEST_F(RestoreTest, ACopyHasWhatWasCommittedWhileItWasMade) {
  auto store = SqliteStore::Open(folder_ + "/state.db");
  ASSERT_TRUE(store.ok()) << store.status();
  Fill(**store);
  auto copy = (*store)->BeginCopy(copy_);
  ASSERT_TRUE(copy.ok()) << copy.status();
  int steps = 0;
  for (;; ++steps) {
    const auto whole = (*copy)->Step();
    ASSERT_TRUE(whole.ok()) << whole.status();
    if (*whole) break;
    if (steps == 1) {
      Transaction late;
      late.jobs = {Job("d-4", v1::QUEUED, 0)};
      ASSERT_TRUE((*store)->Commit(late).ok()) << "the store is used meanwhile";
    }
  }
  EXPECT_GE(steps, 2);
  copy->reset();
  struct stat found = {};
  ASSERT_EQ(stat(copy_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
  auto opened = SqliteStore::OpenCopy(copy_);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_TRUE((*opened)->GetJob("d-4").ok());
  EXPECT_EQ((*opened)->GetProgram("p")->size(), size_t{3} << 20);
  EXPECT_EQ(*(*opened)->LastNumber(), 4);
}

TEST_F(RestoreTest, WhatRanGoesOnUnderNumbersThatNobodyHas) {
  {
    auto store = SqliteStore::Open(copy_);
    ASSERT_TRUE(store.ok()) << store.status();
    Fill(**store);
  }
  const auto restored = Restore();
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->jobs, 3);
  EXPECT_EQ(restored->unfinished, 2);
  EXPECT_EQ(restored->moved_to, "");
  auto store = SqliteStore::Open(target_ + "/state.db");
  ASSERT_TRUE(store.ok()) << store.status();
  const v1::Job ran = *(*store)->GetJob("a-1");
  EXPECT_EQ(ran.state(), v1::RECOVERING);
  EXPECT_GT(ran.epoch(), 1000);
  EXPECT_THAT(ran.message(), HasSubstr("restored from a backup"));
  EXPECT_EQ((*store)->GetJob("b-2")->state(), v1::QUEUED);
  EXPECT_GT((*store)->GetJob("b-2")->epoch(), 1000) << "it may have started since";
  EXPECT_EQ((*store)->GetJob("c-3")->epoch(), 1) << "it has ended";
  EXPECT_GT(*(*store)->LastNumber(), 1000);
  Transaction next;
  next.jobs = {Job("e-5", v1::QUEUED, 0)};
  ASSERT_TRUE((*store)->Commit(next).ok());
}

TEST_F(RestoreTest, AStoreThatIsThereIsKeptUnlessItIsToBeReplaced) {
  {
    auto store = SqliteStore::Open(copy_);
    Fill(**store);
    auto there = SqliteStore::Open(target_ + "/state.db");
    EXPECT_FALSE(there.ok()) << "its folder is not there yet";
  }
  std::filesystem::create_directories(target_);
  auto there = SqliteStore::Open(target_ + "/state.db");
  ASSERT_TRUE(there.ok()) << there.status();
  Transaction other;
  other.jobs = {Job("z-9", v1::QUEUED, 0)};
  ASSERT_TRUE((*there)->Commit(other).ok());
  EXPECT_EQ(Restore().status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_FALSE(std::filesystem::exists(target_ + "/state.db.restored"));
  EXPECT_EQ(Restore(/*replace=*/true).status().code(), absl::StatusCode::kUnavailable)
      << "a coordinator has it";
  there->reset();
  const auto restored = Restore(/*replace=*/true);
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->moved_to, target_ + "/state.db.before-restore");
  auto before = SqliteStore::OpenCopy(restored->moved_to);
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_TRUE((*before)->GetJob("z-9").ok());
  const auto again = Restore(/*replace=*/true);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->moved_to, target_ + "/state.db.before-restore-2");
}

TEST_F(RestoreTest, ALogBesideTheCopyIsPartOfItAndOneWithoutItsStoreIsNot) {
  auto store = SqliteStore::Open(copy_);
  ASSERT_TRUE(store.ok()) << store.status();
  Fill(**store);  // into its log: it is not closed
  ASSERT_TRUE(std::filesystem::exists(copy_ + "-wal"));
  const std::string unclosed = folder_ + "/unclosed";
  std::filesystem::copy_file(copy_, unclosed);
  std::filesystem::copy_file(copy_ + "-wal", unclosed + "-wal");
  std::filesystem::create_directories(target_);
  std::filesystem::copy_file(copy_ + "-wal", target_ + "/state.db-wal");
  const auto restored = RestoreStore({.copy = unclosed, .state_directory = target_});
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->jobs, 3);
  EXPECT_TRUE(std::filesystem::exists(target_ + "/state.db.before-restore-wal"));
  auto opened = SqliteStore::Open(target_ + "/state.db");
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_GT(*(*opened)->LastNumber(), 1000);
}

TEST_F(RestoreTest, NumbersArePassedAlsoWhereThereWasNoJob) {
  ASSERT_TRUE(SqliteStore::Open(copy_).ok());
  const auto restored = Restore();
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(restored->jobs, 0);
  auto store = SqliteStore::Open(target_ + "/state.db");
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_GT(*(*store)->LastNumber(), 1000);
  Transaction next;
  next.jobs = {Job("a-10001", v1::QUEUED, 0)};
  ASSERT_TRUE((*store)->Commit(next).ok());
  EXPECT_GT(*(*store)->LastNumber(), 10'000);
}

TEST_F(RestoreTest, WhatIsNoStoreIsRefusedAndChangesNothing) {
  EXPECT_EQ(Restore().status().code(), absl::StatusCode::kNotFound);
  std::ofstream(copy_).close();
  EXPECT_EQ(Restore().status().code(), absl::StatusCode::kDataLoss);
  std::ofstream(copy_) << std::string(8192, 'n');
  EXPECT_EQ(Restore().status().code(), absl::StatusCode::kDataLoss);
  {
    auto store = SqliteStore::Open(folder_ + "/whole");
    ASSERT_TRUE(store.ok()) << store.status();
    Fill(**store);
  }
  std::filesystem::copy_file(folder_ + "/whole", copy_,
                             std::filesystem::copy_options::overwrite_existing);
  std::filesystem::resize_file(copy_, std::filesystem::file_size(copy_) / 2);
  const auto cut = Restore();
  EXPECT_EQ(cut.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(cut.status().message()), HasSubstr(copy_ + " is not restored"));
  EXPECT_FALSE(std::filesystem::exists(target_ + "/state.db"));
  EXPECT_FALSE(std::filesystem::exists(target_ + "/state.db.restored"));
}

}  // namespace
}  // namespace terrace
