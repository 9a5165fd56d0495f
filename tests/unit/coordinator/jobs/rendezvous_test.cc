// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kRanks = 64;

v1::KvSet Set(const std::string& key, const std::string& value, int64_t epoch = 1) {
  v1::KvSet set;
  set.set_job("a-1");
  set.set_epoch(epoch);
  set.set_key(key);
  set.set_value(value);
  return set;
}
v1::KvWait Wait(uint64_t request, const std::vector<std::string>& keys, int64_t timeout_ms = 100) {
  v1::KvWait wait;
  wait.set_job("a-1");
  wait.set_epoch(1);
  wait.set_request(request);
  wait.set_timeout_ms(timeout_ms);
  for (const std::string& key : keys) wait.add_keys(key);
  return wait;
}

TEST(RendezvousTest, AWaitIsAnsweredWhenAllItsKeysAreSet) {
  Rendezvous rendezvous;
  ASSERT_TRUE(rendezvous.Set(Set("x", "1"), kRanks).ok());
  ASSERT_TRUE(rendezvous.Wait("w0", Wait(5, {"y", "x"}), kRanks, 0).ok());
  EXPECT_THAT(rendezvous.TakeAnswers(0), IsEmpty());
  ASSERT_TRUE(rendezvous.Set(Set("y", "2"), kRanks).ok());
  const auto answers = rendezvous.TakeAnswers(0);
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(answers[0].worker, "w0");
  EXPECT_EQ(answers[0].values.request(), 5);
  EXPECT_EQ(answers[0].values.values(0), "2") << "in the order of the request";
  EXPECT_THAT(rendezvous.TakeAnswers(0), IsEmpty()) << "each is answered once";
}

TEST(RendezvousTest, EpochsDoNotSeeEachOther) {
  Rendezvous rendezvous;
  ASSERT_TRUE(rendezvous.Set(Set("x", "old", 0), kRanks).ok());
  ASSERT_TRUE(rendezvous.Wait("w0", Wait(1, {"x"}), kRanks, 0).ok());
  EXPECT_THAT(rendezvous.TakeAnswers(0), IsEmpty());
}

TEST(RendezvousTest, AnExpiredWaitNamesTheMissingKey) {
  Rendezvous rendezvous;
  ASSERT_TRUE(rendezvous.Wait("w0", Wait(1, {"address of rank 3"}, 50), kRanks, 0).ok());
  EXPECT_THAT(rendezvous.TakeAnswers(49 * kMs), IsEmpty());
  const auto answers = rendezvous.TakeAnswers(50 * kMs);
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_THAT(answers[0].values.error(), HasSubstr("address of rank 3"));
}

TEST(RendezvousTest, AWaitAskedAgainAfterAReconnectIsAnsweredOnce) {
  Rendezvous rendezvous;
  ASSERT_TRUE(rendezvous.Wait("w0", Wait(1, {"x"}), kRanks, 0).ok());
  ASSERT_TRUE(rendezvous.Wait("w0", Wait(1, {"x"}), kRanks, 0).ok());
  ASSERT_TRUE(rendezvous.Set(Set("x", "1"), kRanks).ok());
  EXPECT_THAT(rendezvous.TakeAnswers(0), SizeIs(1));
}

TEST(RendezvousTest, ForgettingAnEpochDropsItsKeysAndWaits) {
  Rendezvous rendezvous;
  ASSERT_TRUE(rendezvous.Set(Set("x", "1"), kRanks).ok());
  ASSERT_TRUE(rendezvous.Wait("w0", Wait(1, {"z"}), kRanks, 0).ok());
  rendezvous.Forget("a-1", 1);
  ASSERT_TRUE(rendezvous.Wait("w0", Wait(2, {"x"}), kRanks, 0).ok());
  EXPECT_THAT(rendezvous.TakeAnswers(0), IsEmpty());
}

TEST(RendezvousTest, LimitsAreRefusals) {
  Rendezvous rendezvous;
  EXPECT_EQ(rendezvous.Set(Set("x", std::string(kRendezvousValueBytesMax + 1, 'v')), kRanks).code(),
            absl::StatusCode::kResourceExhausted);
  for (size_t i = 0; i < kRendezvousKeysMax; ++i) {
    ASSERT_TRUE(rendezvous.Set(Set(std::to_string(i), "v"), kRanks).ok());
  }
  EXPECT_EQ(rendezvous.Set(Set("one more", "v"), kRanks).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(rendezvous.Set(Set("0", "again"), kRanks).ok());
  EXPECT_EQ(rendezvous.Set(Set(std::string(kRendezvousKeyBytesMax + 1, 'k'), "v", 2), 2).code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(RendezvousTest, AGangWaitsForLittleAndNotForEver) {
  Rendezvous rendezvous;
  for (uint64_t i = 0; i < kRendezvousWaitsPerRankMax; ++i)
    ASSERT_TRUE(rendezvous.Wait("w0", Wait(i, {"x"}), 1, 0).ok());
  EXPECT_EQ(rendezvous.Wait("w0", Wait(99, {"x"}), 1, 0).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(rendezvous.Wait("w0", Wait(0, {"x"}), 1, 0).ok()) << "the same again";
  Rendezvous other;
  ASSERT_TRUE(other.Wait("w0", Wait(1, {"x"}, INT64_MAX), 1, 0).ok());
  ASSERT_TRUE(other.Wait("w0", Wait(2, {"x"}, INT64_MIN), 1, 0).ok());
  EXPECT_THAT(other.TakeAnswers(1), SizeIs(1));
  EXPECT_THAT(other.TakeAnswers(kRendezvousWaitMsMax * kMs), SizeIs(1));
}

TEST(RendezvousTest, ASmallGangHoldsLittle) {
  Rendezvous rendezvous;
  const std::string value(kRendezvousValueBytesMax, 'v');
  absl::Status status;
  int64_t set = 0;
  for (; status.ok() && set < 100; ++set)
    status = rendezvous.Set(Set(std::to_string(set), value), 2);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the limit for 2 ranks is"));
  EXPECT_LE(set, RendezvousBytesMax(2) / static_cast<int64_t>(kRendezvousValueBytesMax) + 1);
  EXPECT_TRUE(rendezvous.Set(Set("0", "less"), 2).ok()) << "one that replaces another counts once";
  EXPECT_TRUE(rendezvous.Set(Set("more", value), 2).ok());
  rendezvous.Forget("a-1", 1);
  EXPECT_TRUE(rendezvous.Set(Set("0", value), 2).ok());

  Rendezvous keys;
  for (size_t i = 0; i < kRendezvousKeysPerRankMax; ++i)
    ASSERT_TRUE(keys.Set(Set(std::to_string(i), "v"), 1).ok());
  EXPECT_FALSE(keys.Set(Set("one more", "v"), 1).ok());
}

}  // namespace
}  // namespace terrace
