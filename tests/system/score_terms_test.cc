// What attention does to scores, soft caps and ALiBi: a job does so on every kind of layout as on
// one rank. That it is what the papers say, op conformance shows.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/system/layout_kinds.h"

namespace terrace {
namespace {

// Each rank has heads of its own, whose slopes follow from all heads.
std::vector<LayoutKind> Kinds() {
  std::vector<LayoutKind> kinds = kKinds;
  kinds.push_back({.name = "ring", .context = 2});
  kinds.push_back({.name = "ring of half the heads", .tensor = 2, .context = 2});
  kinds.push_back({.name = "recomputed", .recompute = "full"});
  return kinds;
}

TEST(ScoreTermsTest, EveryKindOfLayoutDoesAsOneRank) {
  for (const std::string family : {"gpt2", "llama"}) {
    JobData data = SmallJob(family);
    data.model.config.score_softcap = 0.5;
    data.model.config.alibi = true;
    ExpectEveryKindDoesAsOneRank(data, family, Kinds());
  }
}

TEST(ScoreTermsTest, UlyssesOfHalfTheHeadsHasThoseOfEachRank) {
  JobData data = SmallJob("gpt2");
  data.model.config.alibi = true;
  ExpectEveryKindDoesAsOneRank(
      data, "gpt2",
      {{.name = "ulysses, tensor", .tensor = 2, .context = 2, .context_type = "ulysses"}});
}

TEST(ScoreTermsTest, EachChangesTheModel) {
  const auto losses = [](double softcap, bool alibi) {
    JobData data = SmallJob("gpt2");
    data.model.config.score_softcap = softcap;
    data.model.config.alibi = alibi;
    return TrainLayout(data, LayoutOfKind({}), 2, kInTurns).losses;
  };
  const std::vector<double> plain = losses(0, false);
  EXPECT_NE(losses(0.5, false), plain);
  EXPECT_NE(losses(0, true), plain);
  EXPECT_EQ(losses(0, false), plain);
}

}  // namespace
}  // namespace terrace
