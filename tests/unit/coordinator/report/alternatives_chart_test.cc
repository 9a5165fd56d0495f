// SPDX-License-Identifier: Apache-2.0
#include "coordinator/report/alternatives_chart.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

struct Text {
  std::string words;
  double left = 0, right = 0, base = 0;
};

// All texts of a chart, with the width that wide letters have.
std::vector<Text> TextsOf(const std::string& svg) {
  constexpr double kWideLetter = 6.9;
  static const std::regex kText(
      R"re(<text x="([0-9.]+)" y="([0-9.]+)"( text-anchor="(\w+)")?[^>]*>([^<]*)</text>)re");
  std::vector<Text> texts;
  for (std::sregex_iterator it(svg.begin(), svg.end(), kText), end; it != end; ++it) {
    Text text = {.words = (*it)[5], .base = std::stod((*it)[2])};
    const double width = kWideLetter * static_cast<double>(text.words.size());
    const std::string anchor = (*it)[4];
    text.left = std::stod((*it)[1]) - (anchor == "end"      ? width
                                       : anchor == "middle" ? width / 2
                                                            : 0);
    text.right = text.left + width;
    texts.push_back(text);
  }
  return texts;
}

void ExpectNoneCovered(const std::vector<Text>& texts, const std::string& what) {
  constexpr double kLine = 12;
  for (size_t i = 0; i < texts.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      const Text &a = texts[i], &b = texts[k];
      const bool apart =
          a.right <= b.left || b.right <= a.left || std::abs(a.base - b.base) >= kLine;
      EXPECT_TRUE(apart) << what << ": '" << a.words << "' and '" << b.words << "'";
    }
  }
}

// Points that lie within `spread` of each other, of their own size; 0: all in one place.
std::vector<Candidate> Close(int count, double spread, std::mt19937_64* random) {
  std::uniform_real_distribution<double> off(0, spread);
  std::vector<Candidate> candidates;
  for (int i = 0; i < count; ++i) {
    candidates.push_back({.number = i,
                          .layout = absl::StrCat("micro_batch ", i, ", recompute block"),
                          .step_seconds = 10 * (1 + off(*random)),
                          .device_bytes = static_cast<int64_t>(6e10 * (1 + off(*random))),
                          .fits = i % 3 != 2,
                          .pareto = i % 3 == 0,
                          .compiled = true});
  }
  return candidates;
}

TEST(AlternativesChartTest, TheChosenOneIsOnTheFrontUnlessOneThatFitsIsFasterAndSmaller) {
  v1::Plan plan;
  plan.set_fits(true);
  plan.mutable_time()->set_step_seconds(10);
  plan.add_memory()->set_arena_bytes(100);
  v1::Alternative* other = plan.add_alternatives();
  other->set_step_seconds(9);
  other->set_device_bytes(90);
  EXPECT_TRUE(CandidatesOf(plan)[0].pareto) << "the other does not fit";
  other->set_fits(true);
  EXPECT_FALSE(CandidatesOf(plan)[0].pareto);
  other->set_device_bytes(101);
  EXPECT_TRUE(CandidatesOf(plan)[0].pareto);
}

TEST(AlternativesChartTest, LabelsOfClosePointsDoNotCoverEachOtherAndNoneIsMissing) {
  std::mt19937_64 random(1);
  for (const double spread : {0.0, 1e-6, 0.01, 0.2, 2.0}) {
    for (const int count : {2, 5, 9, 14}) {
      for (const int64_t limit : {int64_t{0}, int64_t{61'000'000'000}}) {
        const std::string what = absl::StrCat(count, " points within ", spread);
        const auto candidates = Close(count, spread, &random);
        const std::vector<Text> texts = TextsOf(AlternativesChart(candidates, limit).body);
        ExpectNoneCovered(texts, what);
        for (const Candidate& one : candidates) {
          const std::string number = one.number == 0 ? "chosen" : absl::StrCat(one.number);
          int labels = 0;
          for (const Text& text : texts) {
            labels += text.words == number || absl::StartsWith(text.words, number + "  ");
          }
          EXPECT_EQ(labels, 1) << what << ", label " << number;
        }
      }
    }
  }
}

}  // namespace
}  // namespace terrace
