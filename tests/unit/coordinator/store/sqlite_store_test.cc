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

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
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

// Of larger pages, and without what is kept of jobs that have ended.
TEST_F(SqliteStoreTest, AStoreOfAnEarlierVersionGoesOn) {
  v1::Job job;
  job.set_id("a-7");
  job.set_version(1);
  const std::string bytes = job.SerializeAsString();
  sqlite3* database = nullptr;
  sqlite3_open(file_.c_str(), &database);
  const std::string sql = absl::StrCat(
      "PRAGMA page_size = 4096; PRAGMA user_version = 1;"
      "CREATE TABLE jobs (number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, "
      "version INTEGER NOT NULL, data BLOB NOT NULL);"
      "INSERT INTO jobs VALUES (7, 'a-7', 1, x'",
      absl::BytesToHexString(bytes), "')");
  ASSERT_EQ(sqlite3_exec(database, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(database);
  for (int start = 0; start < 2; ++start) {
    const auto store = SqliteStore::Open(file_);
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_EQ((*store)->ListActiveJobs()->size(), start == 0 ? 1u : 0u);
    EXPECT_EQ(*(*store)->LastNumber(), 7);
    v1::JobSummary ended;
    ended.set_id("a-7");
    ended.set_number(7);
    EXPECT_TRUE((*store)->Commit({.ended = {ended}}).ok());
    EXPECT_EQ((*store)->ListEnded({}, INT64_MAX, 10)->size(), 1u);
  }
}

// The events of many jobs that train, one at a time, as a coordinator stores them.
TEST_F(SqliteStoreTest, AnEventWritesLittleMoreThanASmallPage) {
  constexpr int64_t kJobs = 200, kRounds = 40;
  const auto store = SqliteStore::Open(file_);
  ASSERT_TRUE(store.ok()) << store.status();
  const auto written = [] {
    std::ifstream io("/proc/self/io");
    for (std::string name; io >> name;) {
      int64_t value = 0;
      if (io >> value && name == "wchar:") return value;
    }
    return int64_t{0};
  };
  const int64_t before = written();
  for (int64_t round = 1; round <= kRounds; ++round) {
    Transaction transaction{.durability = Durability::kBuffered};
    for (int64_t job = 0; job < kJobs; ++job) {
      v1::JobEvent& event = transaction.events.emplace_back();
      event.set_job(absl::StrCat("a-job-of-many-", job));
      event.set_sequence(round);
      event.mutable_step()->set_step(round);
      event.mutable_step()->set_loss(2.5);
    }
    ASSERT_TRUE((*store)->Commit(transaction).ok());
  }
  ASSERT_GT(written(), before);
  EXPECT_LT((written() - before) / (kJobs * kRounds), 2500);
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

TEST_F(SqliteStoreTest, AnotherDatabaseIsNoStoreAndStaysAsItIs) {
  for (const char* sql : {"CREATE TABLE notes (text TEXT)", "PRAGMA application_id = 7"}) {
    std::filesystem::remove(file_);
    sqlite3* database = nullptr;
    sqlite3_open(file_.c_str(), &database);
    ASSERT_EQ(sqlite3_exec(database, sql, nullptr, nullptr, nullptr), SQLITE_OK);
    sqlite3_close(database);
    const auto bytes = std::filesystem::file_size(file_);
    const auto store = SqliteStore::Open(file_);
    EXPECT_EQ(store.status().code(), absl::StatusCode::kDataLoss) << store.status();
    EXPECT_THAT(std::string(store.status().message()),
                testing::AnyOf(testing::HasSubstr("is another program's database"),
                               testing::HasSubstr("is a database without tables")));
    EXPECT_EQ(std::filesystem::file_size(file_), bytes);
  }
}

TEST_F(SqliteStoreTest, WhatIsNoFileIsNamedAtOnce) {
  ASSERT_EQ(mkfifo(file_.c_str(), 0600), 0);
  EXPECT_THAT(std::string(SqliteStore::Open(file_).status().message()),
              testing::HasSubstr(file_ + ": it is a FIFO, must be a regular file"));
  std::filesystem::remove(file_);
  std::filesystem::create_directory(file_);
  EXPECT_THAT(std::string(SqliteStore::Open(file_).status().message()),
              testing::HasSubstr("directory"));
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
