// A worker's profile that is in doubt, with a shell script in place of terrace-rank.
//
// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/profile_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <deque>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class ProfileKeeperTest : public testing::Test {
 protected:
  ProfileKeeperTest() {
    folder_ = (std::filesystem::temp_directory_path() / "terrace-keeper-XXXXXX").string();
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    present_.set_measured(true);
    present_.set_memory_bytes_per_second(1e9);
  }
  ~ProfileKeeperTest() override {
    if (keeper_ != nullptr) keeper_->Stop();
    std::filesystem::remove_all(folder_);
  }

  // What it is called with goes to a file; `then` is what it does.
  void Probe(const std::string& then) {
    const std::string path = folder_ + "/rank";
    std::ofstream(path) << "#!/bin/sh\necho \"$@\" >> " << folder_ << "/calls\n" << then << "\n";
    ASSERT_EQ(chmod(path.c_str(), 0755), 0);
    if (keeper_ != nullptr) return;
    keeper_ = std::make_unique<ProfileKeeper>(
        ProfileKeeper::Options{.rank_binary = path, .of = {"--threads", "2"}},
        ProfileKeeper::Ports{.post =
                                 [this](std::function<void()> work) {
                                   const absl::MutexLock lock(&mutex_);
                                   posted_.push_back(std::move(work));
                                 },
                             .changed =
                                 [this](const v1::HardwareProfile& profile) {
                                   changed_.push_back(profile.memory_bytes_per_second());
                                 }},
        present_);
  }
  static std::string Prints(double rate, const std::string& doubt = "") {
    return absl::StrCat("echo '{\"measured\": true, \"memory_bytes_per_second\": ", rate,
                        ", \"doubt\": \"", doubt, "\"}'");
  }

  absl::Duration Advance(bool idle) { return keeper_->Advance(idle, now_); }
  // What the process that was started has said is taken.
  void RunToEnd() {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (absl::Now() < deadline) {
      std::function<void()> work;
      {
        const absl::MutexLock lock(&mutex_);
        if (!posted_.empty()) {
          work = std::move(posted_.front());
          posted_.pop_front();
        }
      }
      if (work != nullptr) return work();
      absl::SleepFor(absl::Milliseconds(2));
    }
    FAIL() << "no process ended";
  }
  std::vector<std::string> Calls() const {
    std::ifstream in(folder_ + "/calls");
    std::vector<std::string> calls;
    for (std::string line; std::getline(in, line);) calls.push_back(line);
    return calls;
  }

  std::string folder_;
  v1::HardwareProfile present_;
  absl::Time now_ = absl::Now();
  std::vector<double> changed_;
  absl::Mutex mutex_;
  std::deque<std::function<void()>> posted_;
  std::unique_ptr<ProfileKeeper> keeper_;
};

TEST_F(ProfileKeeperTest, AProfileWithoutDoubtIsLetBe) {
  Probe("exit 1");
  EXPECT_EQ(Advance(/*idle=*/true), absl::InfiniteDuration());
  now_ += absl::Hours(1);
  EXPECT_EQ(Advance(true), absl::InfiniteDuration());
  EXPECT_THAT(Calls(), IsEmpty());
}

TEST_F(ProfileKeeperTest, WhatAJobDoubtsIsMarkedAtOnceAndMeasuredWhenNothingRuns) {
  Probe(Prints(2e9));
  keeper_->Doubt("job a took twice as long");
  Advance(/*idle=*/false);
  RunToEnd();
  EXPECT_THAT(Calls(),
              ElementsAre("probe --brief -o json --doubt job a took twice as long --threads 2"));
  EXPECT_EQ(Advance(false), absl::InfiniteDuration());
  EXPECT_EQ(Advance(true), absl::Seconds(2)) << "the machine comes to rest first";
  now_ += absl::Seconds(2);
  EXPECT_EQ(Advance(true), absl::InfiniteDuration());
  RunToEnd();
  EXPECT_THAT(changed_, ElementsAre(2e9));
  EXPECT_THAT(Calls().back(), "probe --brief -o json --threads 2");
  now_ += absl::Hours(1);
  EXPECT_EQ(Advance(true), absl::InfiniteDuration());
  EXPECT_THAT(Calls(), SizeIs(2)) << "it is in doubt no more";
}

TEST_F(ProfileKeeperTest, ABusyMachineIsWaitedForAndThenMeasuredAllTheSame) {
  Probe(Prints(1e9, "still busy"));  // what is kept
  keeper_->Doubt("job a took twice as long");
  Advance(true);
  RunToEnd();
  const absl::Time idle_since = now_;
  for (now_ += absl::Seconds(2); Calls().back().find("--refresh") == std::string::npos;
       now_ = absl::Now() + absl::Seconds(30)) {
    Advance(true);
    RunToEnd();
    ASSERT_THAT(changed_, IsEmpty());
    ASSERT_LT(now_ - idle_since, absl::Minutes(2));
  }
}

TEST_F(ProfileKeeperTest, OneThatWasMeasuredBesideOtherWorkWaitsForQuietHoweverLong) {
  present_.set_doubt("others used 30 %");
  Probe(Prints(1e9, "others used 30 %"));
  Advance(true);
  absl::Duration pause;
  for (int look = 0; look < 10; ++look) {
    now_ = absl::Now() + absl::Hours(1);
    Advance(true);
    RunToEnd();
    now_ = absl::Now();
    pause = Advance(true);
  }
  EXPECT_GT(pause, absl::Minutes(4));
  EXPECT_LE(pause, absl::Minutes(5));
  for (const std::string& call : Calls()) EXPECT_EQ(call, "probe --brief -o json --threads 2");
  Probe(Prints(3e9));
  now_ = absl::Now() + absl::Hours(1);
  Advance(true);
  RunToEnd();
  EXPECT_THAT(changed_, ElementsAre(3e9));
}

TEST_F(ProfileKeeperTest, AMeasurementEndsWhenARankComes) {
  present_.set_doubt("others used 30 %");
  Probe("exec sleep 600");
  Advance(true);
  now_ += absl::Seconds(2);
  Advance(true);
  Advance(/*idle=*/false);
  RunToEnd();  // within its 20 s
  EXPECT_THAT(changed_, IsEmpty());
  Probe(Prints(2e9));
  Advance(true);
  now_ += absl::Seconds(2);
  Advance(true);
  RunToEnd();
  EXPECT_THAT(changed_, ElementsAre(2e9)) << "and is made later";
}

TEST_F(ProfileKeeperTest, TheEndDoesNotWaitForIt) {
  present_.set_doubt("others used 30 %");
  Probe("exec sleep 600");
  Advance(true);
  now_ += absl::Seconds(2);
  Advance(true);
  const absl::Time before = absl::Now();
  keeper_->Stop();
  EXPECT_LT(absl::Now() - before, absl::Seconds(20));
  EXPECT_EQ(Advance(true), absl::InfiniteDuration());
}

}  // namespace
}  // namespace terrace
