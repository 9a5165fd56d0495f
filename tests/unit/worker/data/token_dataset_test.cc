// SPDX-License-Identifier: Apache-2.0
#include "worker/data/token_dataset.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "gmock/gmock.h"
#include "tests/unit/worker/data/token_dataset_fixture.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;

TEST_F(TokenDatasetTest, TextIsCachedOnceAndReadBack) {
  spec_.add_train(Put("a.txt", Letters(100)));
  spec_.add_validation(Put("b.txt", "0123456789abcdefX"));
  int calls = 0;
  auto dataset =
      TokenDataset::Open(spec_, train_, 256, [&](std::string_view, double) { ++calls; }).value();
  EXPECT_GT(calls, 0);
  EXPECT_EQ(dataset->tokens(Split::kTrain), 100);
  EXPECT_EQ(dataset->tokens(Split::kValidation), 17);
  std::vector<int32_t> tokens(8), targets(8);
  dataset->ValidationRow(1, {.tokens = tokens, .targets = targets});
  EXPECT_EQ(tokens[0], '8');
  EXPECT_EQ(targets[7], 'X');
  calls = 0;
  ASSERT_TRUE(
      TokenDataset::Open(spec_, train_, 256, [&](std::string_view, double) { ++calls; }).ok());
  EXPECT_EQ(calls, 0) << "the second time nothing is tokenised";
}

TEST_F(TokenDatasetTest, AChangedTextIsTokenisedAgain) {
  const std::string path = Put("a.txt", Letters(100));
  spec_.add_train(path);
  ASSERT_EQ(Open().value()->tokens(Split::kTrain), 100);
  Put("a.txt", Letters(50));
  EXPECT_EQ(Open().value()->tokens(Split::kTrain), 50);
  int64_t caches = 0;
  for (const auto& entry : std::filesystem::directory_iterator(spec_.cache())) {
    caches += entry.path().extension() == ".tokens";
  }
  EXPECT_EQ(caches, 1) << "the stale cache is replaced";
}

TEST_F(TokenDatasetTest, SumsTellTokensApartHoweverTheyAreStored) {
  const auto sums = [this](const std::vector<std::string>& train) {
    spec_.clear_train();
    for (const std::string& path : train) spec_.add_train(path);
    return Open().value()->sums();
  };
  const std::string text = Letters(100);
  const TokenSums whole = sums({Put("a.txt", text)});
  EXPECT_EQ(whole.train.tokens, 100);
  EXPECT_EQ(whole.validation.tokens, 0);
  EXPECT_EQ(whole.train,
            sums({PutTokens("a.bin", std::vector<uint16_t>(text.begin(), text.end()))}).train);
  EXPECT_EQ(whole.train,
            sums({Put("b.txt", text.substr(0, 33)), Put("c.txt", text.substr(33))}).train);
  std::string other = text;
  other[99] = '!';
  EXPECT_NE(whole.train, sums({Put("other.txt", other)}).train);
  std::swap(other[0], other[1]);
  other[99] = text[99];
  EXPECT_NE(whole.train, sums({Put("order.txt", other)}).train);
  spec_.add_validation(Put("v.txt", text));
  EXPECT_EQ(Open().value()->sums().validation, whole.train);
}

TEST_F(TokenDatasetTest, SumsOfManyTokensAreOfTheirEndsToo) {
  std::vector<uint16_t> tokens((1 << 24) + 12345, 7);
  const auto sum = [&](int64_t at) {
    spec_.clear_train();
    tokens[at] = 8;
    spec_.add_train(PutTokens("many.bin", tokens));
    tokens[at] = 7;
    return Open().value()->sums().train;
  };
  const TokenSum first = sum(0), last = sum(tokens.size() - 1);
  EXPECT_EQ(first.tokens, static_cast<int64_t>(tokens.size()));
  EXPECT_NE(first.hash, last.hash);
  tokens.back() = 8;
  EXPECT_EQ(sum(tokens.size() - 1).hash, last.hash) << "the same tokens";
}

TEST_F(TokenDatasetTest, ADamagedCacheIsMadeAgain) {
  spec_.add_train(Put("a.txt", Letters(100)));
  ASSERT_TRUE(Open().ok());
  std::string cache;
  for (const auto& entry : std::filesystem::directory_iterator(spec_.cache())) {
    if (entry.path().extension() == ".tokens") cache = entry.path();
  }
  for (const size_t bytes : {0, 10, 72, 100}) {
    std::filesystem::resize_file(cache, bytes);
    EXPECT_EQ(Open().value()->tokens(Split::kTrain), 100) << bytes;
  }
  std::fstream(cache, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(20)
      .put('x');  // the count
  EXPECT_EQ(Open().value()->tokens(Split::kTrain), 100);
}

TEST_F(TokenDatasetTest, ProcessesShareTheWorkOfOne) {
  spec_.add_train(Put("a.txt", Letters(3'000'000)));
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    int pieces = 0;
    const auto dataset = TokenDataset::Open(spec_, train_, 256, [&](std::string_view text, double) {
      pieces += text.starts_with("tokenising");
    });
    ::_exit(!dataset.ok() || (*dataset)->tokens(Split::kTrain) != 3'000'000 ? 100 : pieces > 0);
  }
  int worked = 0;
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    worked += WEXITSTATUS(status);
  }
  EXPECT_EQ(worked, 1);
}

TEST_F(TokenDatasetTest, AFullDiskLeavesNoCacheBehind) {
  spec_.add_train(Put("a.txt", Letters(4'000'000)));
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit small = {1 << 20, 1 << 20};
    ::setrlimit(RLIMIT_FSIZE, &small);
    ::_exit(static_cast<int>(Open().status().code()));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(absl::StatusCode::kResourceExhausted));
  for (const auto& entry : std::filesystem::directory_iterator(spec_.cache())) {
    EXPECT_EQ(entry.path().extension(), ".lock") << entry.path();
  }
  EXPECT_EQ(Open().value()->tokens(Split::kTrain), 4'000'000);
}

TEST_F(TokenDatasetTest, JsonLinesAreDocuments) {
  spec_.add_train(Put("a.txt", Letters(20)));
  spec_.add_validation(
      Put("b.jsonl", "{\"text\": \"0123456\"}\n\n{\"id\": 1, \"text\": \"7\\n9\\u00e9xyz\"}"));
  const std::vector<int32_t> expected = {'0', '1', '2', '3', '4', '5', '6', '7'};
  const auto dataset = Open().value();
  EXPECT_EQ(dataset->tokens(Split::kValidation), 7 + 8);
  EXPECT_EQ(ValidationTokens(*dataset), expected);
}

TEST_F(TokenDatasetTest, OtherFieldsMayHoldWhatPythonWritesForNumbersThatAreNotFinite) {
  spec_.add_train(Put("a.txt", Letters(20)));
  spec_.add_validation(Put("b.jsonl", R"({"score": NaN, "text": "NaN \" 1e999"})"
                                      "\n"
                                      R"({"a": [-Infinity, Infinity, 1e999], "text": "b"})"
                                      "\n"));
  const auto dataset = Open().value();
  EXPECT_EQ(dataset->tokens(Split::kValidation), 12);
  EXPECT_EQ(ValidationTokens(*dataset),
            (std::vector<int32_t>{'N', 'a', 'N', ' ', '"', ' ', '1', 'e'}));
}

TEST_F(TokenDatasetTest, ABadLineIsNamed) {
  for (const char* line : {"{", "[]", "{\"text\": 3}", "{\"txt\": \"\"}", "{\"text\": \"\xff\"}",
                           "{\"text\": NaN}", "{\"x\": NaN, \"text\": \"a\\x\"}", "NaN"}) {
    spec_.clear_train();
    spec_.add_train(Put("a.jsonl", std::string("{\"text\": \"ok\"}\n") + line + "\n"));
    EXPECT_THAT(OpenError(), HasSubstr("data.train: " + folder_ + "/a.jsonl:2: ")) << line;
  }
}

TEST_F(TokenDatasetTest, DocumentsEndWithEndOfText) {
  spec_.set_tokenizer(std::string(TERRACE_TESTDATA) + "/gpt2.json");
  spec_.set_sequence_length(1);
  spec_.add_train(Put("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n"));
  const auto dataset = Open(561).value();
  EXPECT_EQ(dataset->tokens(Split::kTrain), 4);
  int32_t token = 0, target = 0;
  std::set<std::pair<int32_t, int32_t>> pairs;
  for (int row = 0; row < 4; ++row) {
    dataset->TrainRow(0, row, 4, {.tokens = {&token, 1}, .targets = {&target, 1}});
    pairs.insert({token, target});
  }
  EXPECT_EQ(pairs.size(), 4u);
  EXPECT_EQ(
      std::count_if(pairs.begin(), pairs.end(), [](const auto& pair) { return pair.first == 560; }),
      2);
}

TEST_F(TokenDatasetTest, IdsBeyondTheVocabularyAreNamed) {
  std::vector<uint16_t> tokens(5000, 9);
  tokens[4321] = 300;
  spec_.add_train(PutTokens("a.bin", tokens));
  EXPECT_THAT(
      OpenError(256),
      HasSubstr("a.bin has token id 300 at position 4321, but the model's vocabulary is 256"));
  EXPECT_EQ(OpenError(301), "");
  spec_.set_train(0, Put("a.txt", Letters(60) + "~"));
  EXPECT_THAT(OpenError(100), HasSubstr("token id 100 at position 3"));
  EXPECT_EQ(OpenError(127), "");
}

TEST_F(TokenDatasetTest, TooFewTokensAreCounted) {
  spec_.add_train(Put("a.txt", "12345678"));
  EXPECT_THAT(OpenError(), HasSubstr("data.train has 8 tokens, must be at least 9"));
  spec_.set_train(0, Put("b.txt", Letters(100)));
  EXPECT_EQ(OpenError(), "");
  spec_.set_validation_fraction(0.05);
  EXPECT_THAT(OpenError(),
              HasSubstr("the last 5 % of data.train (data.validation_fraction) has 5 tokens"));
  spec_.add_validation(Put("c.txt", "x"));
  EXPECT_THAT(OpenError(), HasSubstr("data.validation has 1 tokens"));
}

TEST_F(TokenDatasetTest, FilesThatCannotBeUsedAreNamedWithTheKey) {
  EXPECT_THAT(OpenError(), HasSubstr("data.train is empty"));
  spec_.add_train(folder_ + "/none.txt");
  EXPECT_EQ(Open().status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(OpenError(), HasSubstr("data.train: cannot open " + folder_ + "/none.txt"));
  spec_.set_train(0, folder_ + "/none.csv");
  EXPECT_THAT(OpenError(), HasSubstr("must be .txt or .jsonl, compressed perhaps (.gz, .zst), .bin or .idx"));
  std::filesystem::create_directories(folder_ + "/folder.txt");
  spec_.set_train(0, folder_ + "/folder.txt");
  EXPECT_EQ(Open().status().code(), absl::StatusCode::kInvalidArgument);
  spec_.set_train(0, Put("latin1.txt", std::string(100, 'a') + "\xe9" + std::string(100, 'b')));
  EXPECT_EQ(OpenError(), "") << "bytes take anything";
  spec_.set_tokenizer(std::string(TERRACE_TESTDATA) + "/gpt2.json");
  EXPECT_THAT(OpenError(561), HasSubstr("latin1.txt is not UTF-8 at byte 100"));
}

}  // namespace
}  // namespace terrace
