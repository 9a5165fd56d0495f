// Texts that grow, on the models of the goldens: whatever lies beside a text, and however its
// tokens come, the logits behind it are those of the whole text.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/system/numerics_job.h"
#include "worker/tools/growing_texts.h"

namespace terrace {
namespace {

using Tokens = std::vector<int32_t>;

constexpr double kBound = 2e-5;  // of logits of a few units

class GenerationTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    auto golden = ReadGolden(std::string(TERRACE_GOLDEN_FOLDER) + "/" + GetParam());
    ASSERT_TRUE(golden.ok()) << golden.status();
    golden_ = *std::move(golden);
  }

  // The tokens [begin, end) of the golden's rows, taken as one long text.
  Tokens Some(int64_t begin, int64_t end) const {
    return {golden_.tokens.begin() + begin, golden_.tokens.begin() + end};
  }

  struct Texts {
    std::unique_ptr<Generating> open;
    std::optional<GrowingTexts> texts;

    GrowingTexts* operator->() { return &*texts; }
  };
  Texts Open(int64_t texts, int64_t max_length, int64_t prefill_tokens = 6) {
    Texts made;
    auto open = OpenToGenerate(
        golden_, texts,
        {.max_length = max_length, .prefill_tokens = prefill_tokens, .score_tokens = 5});
    EXPECT_TRUE(open.ok()) << open.status();
    made.open = *std::move(open);
    auto growing = GrowingTexts::Create(made.open->program, made.open->vm.get());
    EXPECT_TRUE(growing.ok()) << growing.status();
    made.texts = *std::move(growing);
    return made;
  }

  // What a program for that text alone says, all of it in one pass.
  std::vector<float> Alone(const Tokens& tokens) {
    const auto size = static_cast<int64_t>(tokens.size());
    Texts whole = Open(1, size, size);
    whole->Append(0, tokens, 0);
    EXPECT_TRUE(whole->Run().ok());
    return {whole->logits(0).begin(), whole->logits(0).end()};
  }

  void ExpectAsAlone(GrowingTexts& texts, int64_t text, const Tokens& tokens) {
    const std::vector<float> expected = Alone(tokens);
    const std::span<const float> logits = texts.logits(text);
    ASSERT_EQ(logits.size(), expected.size());
    double largest = 0;
    for (size_t i = 0; i < expected.size(); ++i)
      largest = std::max<double>(largest, std::abs(logits[i] - expected[i]));
    EXPECT_LE(largest, kBound) << "text " << text << " of " << tokens.size() << " tokens";
  }

  Golden golden_;
};

TEST_P(GenerationTest, TextsBesideEachOtherAreThoseThatEachIsAlone) {
  Texts texts = Open(3, 16);
  const std::vector<Tokens> whole = {Some(0, 9), Some(9, 10), Some(10, 24)};
  for (int64_t i = 0; i < 3; ++i) texts->Append(i, whole[i], 0);
  ASSERT_TRUE(texts->Run().ok());
  for (int64_t i = 0; i < 3; ++i) ExpectAsAlone(*texts.texts, i, whole[i]);
  // One text goes on by one token, another by several, the third waits: its logits stay.
  texts->Append(0, Some(3, 4), 0);
  texts->Append(1, Some(4, 12), 0);
  ASSERT_TRUE(texts->Run().ok());
  for (int64_t i = 0; i < 3; ++i) ExpectAsAlone(*texts.texts, i, texts->tokens(i));
}

TEST_P(GenerationTest, TokensOneByOneAreThoseOfAWholeText) {
  Texts texts = Open(2, 16);
  for (int64_t i = 0; i < 2; ++i) texts->Append(i, Some(i, i + 3), 0);
  ASSERT_TRUE(texts->Run().ok());
  for (int64_t end = 4; end <= 16; ++end) {
    for (int64_t i = 0; i < 2; ++i) texts->Append(i, Some(end - 1 + i, end + i), 0);
    ASSERT_TRUE(texts->Run().ok());
    for (int64_t i = 0; i < 2; ++i) ExpectAsAlone(*texts.texts, i, Some(i, end + i));
  }
}

TEST_P(GenerationTest, ATextThatGetsTooLongGoesOnWithoutItsOldestTokens) {
  Texts texts = Open(1, 8);
  texts->Append(0, Some(0, 20), 3);
  ASSERT_TRUE(texts->Run().ok());
  ExpectAsAlone(*texts.texts, 0, Some(15, 20));  // room for three is left
  for (int64_t end = 21; end <= 23; ++end) {
    texts->Append(0, Some(end - 1, end), 0);
    ASSERT_TRUE(texts->Run().ok());
    ExpectAsAlone(*texts.texts, 0, Some(15, end));
  }
  texts->Append(0, Some(23, 24), 100);
  ASSERT_TRUE(texts->Run().ok());
  ExpectAsAlone(*texts.texts, 0, Some(20, 24));  // half of it at most is given away
  EXPECT_EQ(texts->tokens(0), Some(0, 24)) << "the text itself loses nothing";
}

// log_softmax of logits in double.
double LogProbability(std::span<const float> logits, int32_t token) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  return logits[token] - largest - std::log(sum);
}

TEST_P(GenerationTest, ScoresAreTheProbabilitiesOfTheTokensBehindWhatStandsBefore) {
  Texts texts = Open(2, 16);
  const Tokens scored = Some(2, 15);
  texts->Append(0, scored, 0, /*likeliest=*/2);
  texts->Append(1, Some(4, 7), 0);  // beside it one that is not asked for
  ASSERT_TRUE(texts->Run().ok());
  ExpectAsAlone(*texts.texts, 0, scored);
  ExpectAsAlone(*texts.texts, 1, Some(4, 7));
  const std::vector<TokenScore>& scores = texts->scores(0);
  ASSERT_EQ(scores.size(), scored.size() - 1) << "nothing stands before the first token";
  EXPECT_TRUE(texts->scores(1).empty());
  for (size_t i = 0; i < scores.size(); ++i) {
    const std::vector<float> logits = Alone({scored.begin(), scored.begin() + i + 1});
    EXPECT_NEAR(scores[i].logprob, LogProbability(logits, scored[i + 1]), kBound);
    ASSERT_EQ(scores[i].likeliest.size(), 2u);
    const auto likeliest = std::max_element(logits.begin(), logits.end()) - logits.begin();
    EXPECT_EQ(scores[i].likeliest[0].first, likeliest);
    for (const auto& [token, logprob] : scores[i].likeliest)
      EXPECT_NEAR(logprob, LogProbability(logits, token), kBound);
    EXPECT_GE(scores[i].likeliest[0].second, scores[i].likeliest[1].second);
  }
  // A text that begins anew has nothing of the last one.
  texts->Clear(0);
  texts->Append(0, Some(20, 24), 0);
  ASSERT_TRUE(texts->Run().ok());
  ExpectAsAlone(*texts.texts, 0, Some(20, 24));
  EXPECT_TRUE(texts->scores(0).empty());
}

INSTANTIATE_TEST_SUITE_P(Families, GenerationTest,
                         testing::Values("gpt2", "llama", "qwen3", "mistral", "gpt_neox", "opt",
                                         "gemma3_text", "falcon_groups", "smollm3", "cohere",
                                         "gemma2", "bloom"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace terrace
