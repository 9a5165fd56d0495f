// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/sqlite_store.h"

#include <sqlite3.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/conformance/store_conformance.h"

namespace terrace {
namespace {

std::string MakeFolder() {
  std::string folder = testing::TempDir() + "sqlite_store_XXXXXX";
  return mkdtemp(folder.data());
}

std::unique_ptr<Store> MakeStore() {
  auto store = SqliteStore::Open(MakeFolder() + "/state.db");
  EXPECT_TRUE(store.ok()) << store.status();
  return std::move(store).value();
}

INSTANTIATE_TEST_SUITE_P(SqliteStore, StoreConformance,
                         testing::Values(StoreFactory{"sqlite", MakeStore}),
                         [](const auto& info) { return info.param.name; });

class SqliteStoreTest : public testing::Test {
 protected:
  const std::string folder_ = MakeFolder();
  const std::string file_ = folder_ + "/state.db";

  static Transaction OneJob(const std::string& id) {
    Transaction transaction;
    transaction.jobs.emplace_back().set_id(id);
    return transaction;
  }
  ~SqliteStoreTest() override { std::filesystem::remove_all(folder_); }
};

TEST_F(SqliteStoreTest, WhatWasCommittedIsThereAfterReopening) {
  {
    auto store = SqliteStore::Open(file_);
    ASSERT_TRUE((*store)->Commit(OneJob("a-1")).ok());
    ASSERT_TRUE((*store)->Commit({.learned = {{"w0", "s", 5}}}).ok());
  }
  auto store = SqliteStore::Open(file_);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE((*store)->GetJob("a-1").ok());
  ASSERT_EQ((*store)->Learned()->size(), 1);
  EXPECT_EQ((*store)->Learned()->front().external_bytes, 5);
}

TEST_F(SqliteStoreTest, AStoreThatWasThereIsNotTakenForANewOne) {
  ASSERT_TRUE(SqliteStore::Open(file_).ok());
  std::filesystem::remove(file_);
  const auto store = SqliteStore::Open(file_);
  EXPECT_EQ(store.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(store.status().message(),
            file_ + " is missing, but this directory held one: restore a copy, or remove " + file_ +
                ".used to begin without jobs");
  EXPECT_FALSE(std::filesystem::exists(file_)) << "nothing was made";
  std::filesystem::remove(file_ + ".used");
  EXPECT_TRUE(SqliteStore::Open(file_).ok());
}

TEST_F(SqliteStoreTest, ANewStoreIsItsOwnersAlone) {
  auto store = SqliteStore::Open(file_);
  ASSERT_TRUE((*store)->Commit(OneJob("a-1")).ok());
  for (const std::string& file : {file_, file_ + "-wal"}) {
    struct stat status {};
    ASSERT_EQ(stat(file.c_str(), &status), 0) << file;
    EXPECT_EQ(status.st_mode & 0777, 0600u) << file;
  }
}

TEST_F(SqliteStoreTest, AnEmptyFileIsNoStore) {
  std::ofstream(file_).flush();
  const auto store = SqliteStore::Open(file_);
  EXPECT_EQ(store.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(store.status().message()), testing::HasSubstr("state.db is empty"));
  std::filesystem::remove(file_);
  EXPECT_TRUE(SqliteStore::Open(file_).ok());
  EXPECT_FALSE(std::filesystem::exists(file_ + ".new"));
}

TEST_F(SqliteStoreTest, WhatWasCommittedSurvivesTheKillOfItsProcess) {
  const pid_t child = fork();
  if (child == 0) {
    auto store = SqliteStore::Open(file_);
    const bool written = store.ok() && (*store)->Commit(OneJob("a-1")).ok();
    kill(getpid(), written ? SIGKILL : SIGTERM);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_EQ(WTERMSIG(status), SIGKILL);
  auto store = SqliteStore::Open(file_);
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_TRUE((*store)->GetJob("a-1").ok());
}

TEST_F(SqliteStoreTest, ASecondCoordinatorOnTheSameFileIsRefused) {
  auto first = SqliteStore::Open(file_);
  ASSERT_TRUE(first.ok());
  const auto second = SqliteStore::Open(file_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(second.status().message().find("another coordinator"), absl::string_view::npos)
      << second.status();
}

TEST_F(SqliteStoreTest, AFileThatIsNoStoreIsDataLoss) {
  std::ofstream(file_) << std::string(8192, 'x');
  EXPECT_EQ(SqliteStore::Open(file_).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(SqliteStoreTest, ADamagedFileIsDataLoss) {
  {
    auto store = SqliteStore::Open(file_);
    for (int i = 0; i < 50; ++i) {
      Transaction job = OneJob("job-" + std::to_string(i));
      job.jobs[0].set_message(std::string(2000, 'm'));
      ASSERT_TRUE((*store)->Commit(job).ok());
    }
  }
  std::fstream file(file_, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(4096);
  file << std::string(16384, '\xff');
  file.close();
  EXPECT_EQ(SqliteStore::Open(file_).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(SqliteStoreTest, AMissingFolderIsNamed) {
  const auto store = SqliteStore::Open(folder_ + "/absent/state.db");
  EXPECT_EQ(store.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_NE(store.status().message().find("/absent/state.db"), absl::string_view::npos);
}

TEST_F(SqliteStoreTest, AFileOfANewerFormatIsRefused) {
  ASSERT_TRUE(SqliteStore::Open(file_).ok());
  sqlite3* database = nullptr;
  sqlite3_open(file_.c_str(), &database);
  sqlite3_exec(database, "PRAGMA user_version = 99", nullptr, nullptr, nullptr);
  sqlite3_close(database);
  EXPECT_EQ(SqliteStore::Open(file_).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace terrace
