// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/directory_places.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kSecond = 1'000'000'000;

TEST(DirectoryPlacesTest, APlaceIsAskedForUntilItIsKnown) {
  DirectoryPlaces places;
  places.Add("/a");
  EXPECT_THAT(places.TakeUnknown(0), ElementsAre("/a"));
  EXPECT_THAT(places.TakeUnknown(1), ElementsAre("/a")) << "nobody has answered yet";
  places.Note("/a", "1:2:", 1);
  EXPECT_THAT(places.TakeUnknown(2), IsEmpty());
  EXPECT_EQ(places.At("1:2:"), "/a");
  EXPECT_EQ(places.At("1:3:"), "");
}

TEST(DirectoryPlacesTest, APlaceIsLookedAtAgainAfterAMinuteByOne) {
  DirectoryPlaces places;
  places.Add("/a");
  places.Note("/a", "1:2:", 0);
  EXPECT_THAT(places.TakeUnknown(kPlaceBelievedNs - 1), IsEmpty());
  EXPECT_THAT(places.TakeUnknown(kPlaceBelievedNs), ElementsAre("/a"));
  EXPECT_THAT(places.TakeUnknown(kPlaceBelievedNs + kSecond), IsEmpty()) << "somebody looks";
  EXPECT_EQ(places.At("1:2:"), "/a") << "meanwhile it counts";
  EXPECT_THAT(places.TakeUnknown(kPlaceBelievedNs + kPlaceAskedAgainNs), ElementsAre("/a"))
      << "who looked has not answered";
  places.Note("/a", "1:9:", kPlaceBelievedNs + kPlaceAskedAgainNs);
  EXPECT_EQ(places.At("1:2:"), "");
  EXPECT_EQ(places.At("1:9:"), "/a");
}

TEST(DirectoryPlacesTest, APlaceInDoubtIsAskedForByEverybody) {
  DirectoryPlaces places;
  places.Add("/a");
  places.Add("/b");
  places.Note("/a", "1:2:", 0);
  places.Note("/b", "1:3:", 0);
  places.Doubt("/b");
  EXPECT_THAT(places.TakeUnknown(1), ElementsAre("/b"));
  EXPECT_THAT(places.TakeUnknown(2), ElementsAre("/b"));
}

TEST(DirectoryPlacesTest, ADirectoryIsForgottenWithItsLastJob) {
  DirectoryPlaces places;
  places.Add("/a");
  places.Add("/a");
  places.Note("/a", "1:2:", 0);
  places.Remove("/a");
  EXPECT_EQ(places.At("1:2:"), "/a");
  places.Remove("/a");
  EXPECT_EQ(places.At("1:2:"), "");
  EXPECT_THAT(places.TakeUnknown(kPlaceBelievedNs), IsEmpty());
  places.Note("/a", "1:2:", 1);
  EXPECT_EQ(places.At("1:2:"), "") << "an answer that comes late";
}

TEST(DirectoryPlacesTest, WhatCannotBeFollowedIsNoPlace) {
  DirectoryPlaces places;
  places.Add("");
  places.Add("/a");
  EXPECT_THAT(places.TakeUnknown(0), ElementsAre("/a"));
  places.Note("/a", "", 0);
  EXPECT_EQ(places.At(""), "");
  EXPECT_THAT(places.TakeUnknown(1), IsEmpty());
}

}  // namespace
}  // namespace terrace
