// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/directory_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

namespace terrace {
namespace {

std::string Folder(const char* name) {
  const std::string path = testing::TempDir() + "/" + name;
  std::filesystem::create_directories(path);
  return path;
}

TEST(DirectoryLockTest, ASecondWriterIsRefusedWithTheWayOut) {
  const std::string folder = Folder("lock_second");
  const auto first = DirectoryLock::Take(folder, {"books-7", 1}, {0, 0});
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = DirectoryLock::Take(folder, {"letters-8", 1}, {100, 100});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  const std::string words(second.status().message());
  EXPECT_THAT(words, testing::HasSubstr("job books-7 writes into " + folder));
  EXPECT_THAT(words, testing::HasSubstr("name another folder"));
}

TEST(DirectoryLockTest, EndsWithItsOwner) {
  const std::string folder = Folder("lock_ends");
  { ASSERT_TRUE(DirectoryLock::Take(folder, {"books-7", 1}, {0, 0}).ok()); }
  EXPECT_TRUE(DirectoryLock::Take(folder, {"books-7", 1}, {0, 0}).ok());
}

TEST(DirectoryLockTest, AKilledHolderReleasesIt) {
  const std::string folder = Folder("lock_killed");
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto lock = DirectoryLock::Take(folder, {"books-7", 1}, {0, 0});
    const char answer = lock.ok() ? 'y' : 'n';
    if (write(ready[1], &answer, 1) != 1) _exit(1);
    pause();
  }
  char answer = 0;
  ASSERT_EQ(read(ready[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  EXPECT_FALSE(DirectoryLock::Take(folder, {"books-7", 1}, {0, 0}).ok());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(DirectoryLock::Take(folder, {"books-7", 1}, {2000, 2000}).ok());
}

TEST(DirectoryLockTest, AnEarlierStartOfTheSameJobIsWaitedForLonger) {
  const std::string folder = Folder("lock_earlier");
  const auto first = DirectoryLock::Take(folder, {"books-7", 2}, {});
  ASSERT_TRUE(first.ok()) << first.status();
  const LockPatience patience = {.ms = 0, .earlier_ms = 120};
  const auto start = std::chrono::steady_clock::now();
  const auto later = DirectoryLock::Take(folder, {"books-7", 3}, patience);
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(120));
  EXPECT_EQ(later.status().code(), absl::StatusCode::kUnavailable);
  const std::string words(later.status().message());
  EXPECT_THAT(words, testing::HasSubstr("an earlier start of this job (epoch 2)"));
  EXPECT_THAT(words, testing::HasSubstr(folder));
  // Two commands that run the same spec at the same time are two jobs.
  EXPECT_EQ(DirectoryLock::Take(folder, {"books-7", 2}, patience).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(DirectoryLock::Take(folder, {"letters-8", 3}, patience).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace terrace
