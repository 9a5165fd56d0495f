// Which profile a command gets, what is kept, and what disturbs a measurement.
//
// SPDX-License-Identifier: Apache-2.0
#include "worker/probe/kept.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Loads = std::vector<DeviceLoad>;

// Sees these one after the other.
std::string Disturbance(std::vector<absl::StatusOr<Loads>> looks) {
  size_t next = 0;
  GpuWatch watch([&] { return looks.at(next++); }, absl::ZeroDuration());
  watch.Begin();
  return watch.End();
}

TEST(GpuWatchTest, ProcessesThatOnlyHoldMemoryDisturbNothing) {
  EXPECT_THAT(Disturbance({Loads{{3, 0}, {2, 1}}, Loads{{4, 2}, {3, 0}}}), IsEmpty());
}

TEST(GpuWatchTest, WhatRunsBeforeOrAfterDisturbs) {
  EXPECT_THAT(Disturbance({Loads{{1, 0}, {1, 97}}}),
              HasSubstr("something else used GPU 1, as ranks of jobs do (it was 97 % busy)"));
  EXPECT_THAT(Disturbance({Loads{{0, 0}}, Loads{{2, 40}}}), HasSubstr("GPU 0"));
  EXPECT_THAT(Disturbance({Loads{{0, 0}}, Loads{{2, 40}}}), HasSubstr("terrace profile --refresh"));
}

TEST(GpuWatchTest, OfAPartOfADeviceOtherProcessesCount) {
  EXPECT_THAT(Disturbance({Loads{{0, {}}}, Loads{{1, {}}}}), IsEmpty()) << "its own";
  EXPECT_THAT(Disturbance({Loads{{2, {}}}}), HasSubstr("processes there: 2"));
  EXPECT_THAT(Disturbance({Loads{{0, {}}}, Loads{{3, {}}}}), HasSubstr("processes there: 2"));
}

TEST(GpuWatchTest, WhereTheDriverDoesNotTellNothingIsKnown) {
  EXPECT_THAT(Disturbance({absl::UnavailableError("no NVML")}), IsEmpty());
  EXPECT_THAT(Disturbance({Loads{{0, 0}}, absl::UnavailableError("no NVML")}), IsEmpty());
}

class FakeWatch final : public ProbeWatch {
 public:
  explicit FakeWatch(std::vector<std::string>* events) : events_(*events) {}
  void Begin() override { events_.push_back("begin"); }
  std::string End() override {
    events_.push_back("end");
    return found;
  }
  std::string found;

 private:
  std::vector<std::string>& events_;
};

class KeptOrMeasuredTest : public testing::Test {
 protected:
  KeptOrMeasuredTest() {
    folder_ = (std::filesystem::temp_directory_path() / "terrace-kept-XXXXXX").string();
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    wanted_.is_enough = [this](const v1::HardwareProfile&) { return enough_; };
    wanted_.measure = [this](const v1::HardwareProfile* kept) {
      events_.push_back(kept == nullptr ? "measure" : "measure anew");
      v1::HardwareProfile profile;
      profile.set_hardware("0001");
      profile.set_measured(true);
      profile.set_name(next_);
      return profile;
    };
    wanted_.watch = &watch_;
  }
  ~KeptOrMeasuredTest() override { std::filesystem::remove_all(folder_); }

  // Its name, and its doubt behind a colon.
  std::string Profile(const std::string& measured_now) {
    next_ = measured_now;
    const auto profile = KeptOrMeasured(ProbeCache::Open(folder_, "cuda", "0001"), wanted_,
                                        [this](std::string_view said) { said_ = said; });
    if (!profile.ok()) return "";
    return profile->name() + (profile->doubt().empty() ? "" : ": ") + profile->doubt();
  }

  std::string folder_, next_, said_;
  bool enough_ = true;
  std::vector<std::string> events_;
  FakeWatch watch_{&events_};
  WantedProfile wanted_;
};

TEST_F(KeptOrMeasuredTest, WhatIsKeptIsGivenAndNobodyLooksForOthers) {
  EXPECT_EQ(Profile("first"), "first");
  EXPECT_THAT(std::exchange(events_, {}), ElementsAre("begin", "measure", "end"));
  EXPECT_EQ(Profile("second"), "first");
  EXPECT_THAT(events_, IsEmpty());
  enough_ = false;
  EXPECT_EQ(Profile("third"), "third");
  EXPECT_THAT(events_, ElementsAre("begin", "measure anew", "end"));
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(KeptOrMeasuredTest, WhatIsInDoubtIsMeasuredAgainOnceItIsQuiet) {
  bool quiet = false;
  wanted_.is_quiet = [&quiet] { return quiet; };
  wanted_.keeps_doubtful = true;
  watch_.found = "others used the machine";
  const std::string doubted = "first: others used the machine";
  EXPECT_EQ(Profile("first"), doubted);
  EXPECT_THAT(said_, HasSubstr("the profile is in doubt: others used the machine"));
  EXPECT_EQ(Profile("second"), doubted) << "kept, as it is still loud";
  EXPECT_THAT(said_, HasSubstr("used until the machine is quiet"));
  quiet = true;
  watch_.found.clear();
  EXPECT_EQ(Profile("third"), "third");
  said_.clear();
  EXPECT_EQ(Profile("fourth"), "third");
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(KeptOrMeasuredTest, WhatAJobPutInDoubtIsMeasuredAgainOnceItIsQuiet) {
  bool quiet = false;
  wanted_.is_quiet = [&quiet] { return quiet; };
  const auto doubt = [this] {
    return ProbeCache::Open(folder_, "cuda", "0001").SetDoubt("a job took twice as long");
  };
  EXPECT_EQ(doubt().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Profile("first"), "first");
  ASSERT_TRUE(doubt().ok());
  EXPECT_EQ(Profile("second"), "first: a job took twice as long");
  quiet = true;
  EXPECT_EQ(Profile("third"), "third");
  EXPECT_EQ(Profile("fourth"), "third");
}

TEST_F(KeptOrMeasuredTest, WhatWasDisturbedIsUsedAndNotKept) {
  watch_.found = "somebody was there";
  EXPECT_EQ(Profile("first"), "first");
  EXPECT_EQ(said_, "the measured profile is not kept: somebody was there");
  watch_.found.clear();
  EXPECT_EQ(Profile("second"), "second");
  EXPECT_EQ(Profile("third"), "second");
}

}  // namespace
}  // namespace terrace
