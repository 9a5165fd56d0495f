// SPDX-License-Identifier: Apache-2.0
#include "client/process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace terrace {
namespace {

TEST(ProcessTest, RunToEndReturnsTheExitStatus) {
  EXPECT_EQ(*RunToEnd("/bin/sh", {"-c", "exit 7"}), 7);
  EXPECT_EQ(*RunToEnd("/bin/sh", {"-c", "kill -9 $$"}), 128 + 9);
  EXPECT_EQ(*RunToEnd("/nonexistent/program", {}), 127);
}

TEST(ProcessTest, ASignalEndsTheChildAndNotItsParent) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const pid_t self = getpid();
    std::thread sender([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      kill(self, signal);
    });
    const auto started = std::chrono::steady_clock::now();
    EXPECT_EQ(*RunToEnd("/bin/sleep", {"30"}), 128 + signal);
    EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(10));
    sender.join();
    struct sigaction after = {};
    sigaction(signal, nullptr, &after);
    EXPECT_EQ(after.sa_handler, SIG_DFL);
  }
}

TEST(ProcessTest, AChildThatEndsWellAfterASignalDoesNotHideIt) {
  const pid_t self = getpid();
  std::thread sender([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    kill(self, SIGTERM);
  });
  EXPECT_EQ(*RunToEnd("/bin/sh", {"-c", "trap 'exit 0' TERM; while :; do sleep 0.05; done"}),
            128 + SIGTERM);
  sender.join();
}

TEST(ProcessTest, SiblingsThatAreMissingAreNamed) {
  EXPECT_EQ(SiblingProgram("no-such-program").status().code(), absl::StatusCode::kNotFound);
}

TEST(ProcessTest, BackgroundChildrenEndWithTheirOwner) {
  const std::string log = testing::TempDir() + "/process_test.log";
  auto started = std::chrono::steady_clock::now();
  {
    auto child = BackgroundProcess::Start("/bin/sleep", {"60"}, log);
    ASSERT_TRUE(child.ok());
    EXPECT_TRUE(child->Running());
  }
  EXPECT_LT(std::chrono::steady_clock::now() - started, std::chrono::seconds(5));
}

TEST(ProcessTest, AnEndedChildTellsItsStatus) {
  auto child = BackgroundProcess::Start("/bin/sh", {"-c", "exit 3"},
                                        testing::TempDir() + "/process_test.log");
  ASSERT_TRUE(child.ok());
  for (int i = 0; i < 500 && child->Running(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_FALSE(child->Running());
  EXPECT_EQ(child->exit_status(), 3);
}

TEST(ProcessTest, AnUnwritableLogIsAnError) {
  EXPECT_EQ(BackgroundProcess::Start("/bin/true", {}, "/nonexistent/log").status().code(),
            absl::StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace terrace
