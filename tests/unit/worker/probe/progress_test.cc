// SPDX-License-Identifier: Apache-2.0
#include "worker/probe/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class ProbeProgressTest : public testing::Test {
 protected:
  ProbeProgress::Options Of(ProbePatience patience, bool terminal = false) {
    return {.what = "this machine",
            .terminal = terminal,
            .patience = patience,
            .write =
                [this](std::string_view text) {
                  const absl::MutexLock lock(&mutex_);
                  written_ += text;
                },
            .out_of_time =
                [this](const std::string& sentence) {
                  sentence_ = sentence;
                  over_.Notify();
                }};
  }
  std::string written() {
    const absl::MutexLock lock(&mutex_);
    return written_;
  }

  absl::Mutex mutex_;
  std::string written_, sentence_;
  absl::Notification over_;
};

TEST_F(ProbeProgressTest, AMeasurementThatHangsIsToldWithItsPhase) {
  ProbeProgress progress(Of({.limit = absl::Milliseconds(50)}));
  progress.Show("links", 0.85);
  ASSERT_TRUE(over_.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_THAT(sentence_, StartsWith("measuring this machine did not end within 50ms"));
  EXPECT_THAT(sentence_, HasSubstr("85 %, links"));
  EXPECT_THAT(sentence_, HasSubstr("terrace profile --refresh"));
}

TEST_F(ProbeProgressTest, OneThatEndsInItsTimeIsNot) {
  { ProbeProgress progress(Of({.limit = absl::Milliseconds(200)})); }
  absl::SleepFor(absl::Milliseconds(300));
  EXPECT_FALSE(over_.HasBeenNotified());
  EXPECT_EQ(written(), "measuring this machine, once\n");
}

TEST_F(ProbeProgressTest, ALongOneIsHeardOfWithoutATerminal) {
  ProbeProgress progress(Of({.limit = absl::Minutes(1), .silence = absl::Milliseconds(20)}));
  progress.Show("kernels", 0.25);
  while (written().find("still measuring this machine: 25 % done, now kernels\n") ==
         std::string::npos) {
    absl::SleepFor(absl::Milliseconds(5));
  }
}

TEST_F(ProbeProgressTest, OnATerminalOneLineIsWrittenAnew) {
  {
    ProbeProgress progress(Of({.limit = absl::Minutes(1)}, /*terminal=*/true));
    progress.Show("kernels", 0.25);
  }
  EXPECT_THAT(written(), StartsWith("\rmeasuring this machine:  25 %, kernels"));
  EXPECT_THAT(written(), HasSubstr("\r\033[K"));
}

}  // namespace
}  // namespace terrace
