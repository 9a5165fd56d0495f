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
#include "worker/data/permutation.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;

class TokenDatasetTest : public ::testing::Test {
 protected:
  TokenDatasetTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "terrace-test-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    spec_.set_tokenizer("bytes");
    spec_.set_sequence_length(8);
    spec_.set_cache(folder_ + "/cache");
  }
  ~TokenDatasetTest() override { std::filesystem::remove_all(folder_); }

  std::string Put(const std::string& name, const std::string& content) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << content;
    return folder_ + "/" + name;
  }
  template <typename T>
  std::string PutTokens(const std::string& name, const std::vector<T>& tokens,
                        const std::string& header = "") {
    return Put(name, header + std::string(reinterpret_cast<const char*>(tokens.data()),
                                          tokens.size() * sizeof(T)));
  }
  absl::StatusOr<std::unique_ptr<TokenDataset>> Open(int64_t vocabulary = 256, int64_t seed = 1) {
    train_.set_seed(seed);
    return TokenDataset::Open(spec_, train_, vocabulary, nullptr);
  }
  std::string OpenError(int64_t vocabulary = 256) {
    const auto dataset = Open(vocabulary);
    return dataset.ok() ? "" : std::string(dataset.status().message());
  }
  // The validation split in order, whole windows.
  std::vector<int32_t> ValidationTokens(const TokenDataset& dataset) {
    const int64_t length = spec_.sequence_length();
    std::vector<int32_t> all, tokens(length), targets(length);
    for (int64_t i = 0; i < (dataset.tokens(Split::kValidation) - 1) / length; ++i) {
      dataset.ValidationRow(i, tokens, targets);
      all.insert(all.end(), tokens.begin(), tokens.end());
    }
    return all;
  }

  std::string folder_;
  v1::DataSpec spec_;
  v1::TrainSpec train_;
};

std::string Letters(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text.push_back(static_cast<char>('a' + i % 26));
  return text;
}

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
  dataset->ValidationRow(1, tokens, targets);
  EXPECT_EQ(tokens[0], '8');
  EXPECT_EQ(targets[7], 'X');
  calls = 0;
  ASSERT_TRUE(
      TokenDataset::Open(spec_, train_, 256, [&](std::string_view, double) { ++calls; }).ok());
  EXPECT_EQ(calls, 0) << "the second time nothing is tokenised";
}

// ---- the cache
// -------------------------------------------------------------------------------------------------

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

// ---- formats
// -------------------------------------------------------------------------------------------------

TEST_F(TokenDatasetTest, JsonLinesAreDocuments) {
  spec_.add_train(Put("a.txt", Letters(20)));
  spec_.add_validation(
      Put("b.jsonl", "{\"text\": \"0123456\"}\n\n{\"id\": 1, \"text\": \"7\\n9\\u00e9xyz\"}"));
  const std::vector<int32_t> expected = {'0', '1', '2', '3', '4', '5', '6', '7'};
  const auto dataset = Open().value();
  EXPECT_EQ(dataset->tokens(Split::kValidation), 7 + 8);
  EXPECT_EQ(ValidationTokens(*dataset), expected);
}

TEST_F(TokenDatasetTest, ABadLineIsNamed) {
  for (const char* line : {"{", "[]", "{\"text\": 3}", "{\"txt\": \"\"}", "{\"text\": \"\xff\"}"}) {
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
    dataset->TrainRow(0, row, 4, {&token, 1}, {&target, 1});
    pairs.insert({token, target});
  }
  EXPECT_EQ(pairs.size(), 4u);
  EXPECT_EQ(
      std::count_if(pairs.begin(), pairs.end(), [](const auto& pair) { return pair.first == 560; }),
      2);
}

TEST_F(TokenDatasetTest, RawTokensAreUint16OrUint32ByVocabulary) {
  std::vector<uint16_t> narrow;
  std::vector<uint32_t> wide;
  for (int i = 0; i < 17; ++i) narrow.push_back(i * 3), wide.push_back(i * 70'000 % 100'000);
  spec_.add_train(Put("t.txt", Letters(20)));
  spec_.add_validation(PutTokens("a.bin", narrow));
  EXPECT_EQ(ValidationTokens(*Open(256).value()),
            std::vector<int32_t>(narrow.begin(), narrow.begin() + 16));
  spec_.set_validation(0, PutTokens("b.bin", wide));
  EXPECT_EQ(ValidationTokens(*Open(100'000).value()),
            std::vector<int32_t>(wide.begin(), wide.begin() + 16));
  spec_.set_validation(0, Put("c.bin", "123"));
  EXPECT_THAT(OpenError(), HasSubstr("3 bytes, not a multiple of 2"));
}

std::string LlmcHeaderText(int32_t magic, int32_t version, int32_t count) {
  int32_t header[256] = {magic, version, count};
  return std::string(reinterpret_cast<const char*>(header), sizeof(header));
}

TEST_F(TokenDatasetTest, LlmcHeadersTellTheWidth) {
  std::vector<uint16_t> narrow(17, 5);
  std::vector<uint32_t> wide(17, 200);
  spec_.add_train(Put("t.txt", Letters(20)));
  spec_.add_validation(PutTokens("a.bin", narrow, LlmcHeaderText(20240520, 1, 17)));
  EXPECT_EQ(Open().value()->tokens(Split::kValidation), 17);
  spec_.set_validation(0, PutTokens("b.bin", wide, LlmcHeaderText(20240801, 7, 17)));
  EXPECT_EQ(ValidationTokens(*Open().value()), std::vector<int32_t>(16, 200));
  spec_.set_validation(0, PutTokens("c.bin", narrow, LlmcHeaderText(20240520, 1, 18)));
  EXPECT_THAT(OpenError(), HasSubstr("announces 18 tokens"));
  spec_.set_validation(0, PutTokens("d.bin", narrow, LlmcHeaderText(20240520, 2, 17)));
  EXPECT_THAT(OpenError(), HasSubstr("version 2, must be 1"));
  spec_.set_validation(0, PutTokens("e.bin", narrow, LlmcHeaderText(20240801, 7, -1)));
  EXPECT_THAT(OpenError(), HasSubstr("announces -1 tokens"));
}

template <typename T>
void Append(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

std::string MegatronIndex(uint8_t code, int token_bytes, const std::vector<int32_t>& lengths) {
  std::string index("MMIDIDX\0\0", 9);
  Append(&index, uint64_t{1});
  Append(&index, code);
  Append(&index, uint64_t{lengths.size()});
  Append(&index, uint64_t{lengths.size() + 1});
  for (const int32_t length : lengths) Append(&index, length);
  int64_t position = 0;
  for (const int32_t length : lengths) {
    Append(&index, position);
    position += length * token_bytes;
  }
  for (size_t i = 0; i <= lengths.size(); ++i) Append(&index, int64_t(i));
  return index;
}

TEST_F(TokenDatasetTest, MegatronDataSetsAreReadInPlace) {
  spec_.add_train(Put("t.txt", Letters(20)));
  spec_.add_validation(PutTokens("m.bin", std::vector<int32_t>(20, 7)));
  Put("m.idx", MegatronIndex(4, 4, {12, 8}));
  EXPECT_EQ(Open().value()->tokens(Split::kValidation), 20);
  spec_.set_validation(0, folder_ + "/m.idx");
  EXPECT_EQ(Open().value()->tokens(Split::kValidation), 20);
  PutTokens("m.bin", std::vector<uint16_t>(20, 7));
  Put("m.idx", MegatronIndex(8, 2, {12, 8}));
  EXPECT_EQ(ValidationTokens(*Open().value()), std::vector<int32_t>(16, 7));
}

TEST_F(TokenDatasetTest, DamagedMegatronIndexesAreErrors) {
  spec_.add_train(PutTokens("m.bin", std::vector<uint16_t>(20, 7)));
  const std::string good = MegatronIndex(8, 2, {12, 8});
  const auto error = [&](const std::string& index) {
    Put("m.idx", index);
    return OpenError();
  };
  EXPECT_EQ(error(good), "");
  EXPECT_THAT(error("x" + good), HasSubstr("MMIDIDX"));
  EXPECT_THAT(error(good.substr(0, 40)), HasSubstr("announces 2 sequences"));
  EXPECT_THAT(error(MegatronIndex(7, 4, {12, 8})), HasSubstr("token type code 7"));
  EXPECT_THAT(error(MegatronIndex(8, 2, {12, 9})), HasSubstr("describes 42 bytes"));
  EXPECT_THAT(error(MegatronIndex(8, 2, {-12, 8})), HasSubstr("sequence 0"));
  EXPECT_THAT(error(MegatronIndex(8, 4, {12, 8})), HasSubstr("sequence 1 does not follow"));
  std::string huge = good;
  const uint64_t count = uint64_t{1} << 62;
  huge.replace(18, 8, reinterpret_cast<const char*>(&count), 8);
  EXPECT_THAT(error(huge), HasSubstr("announces 4611686018427387904 sequences"));
}

// ---- wrong data
// -------------------------------------------------------------------------------------------------

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
  EXPECT_THAT(OpenError(), HasSubstr("must be .txt, .jsonl, .bin or .idx"));
  std::filesystem::create_directories(folder_ + "/folder.txt");
  spec_.set_train(0, folder_ + "/folder.txt");
  EXPECT_EQ(Open().status().code(), absl::StatusCode::kInvalidArgument);
  spec_.set_train(0, Put("latin1.txt", std::string(100, 'a') + "\xe9" + std::string(100, 'b')));
  EXPECT_EQ(OpenError(), "") << "bytes take anything";
  spec_.set_tokenizer(std::string(TERRACE_TESTDATA) + "/gpt2.json");
  EXPECT_THAT(OpenError(561), HasSubstr("latin1.txt is not UTF-8 at byte 100"));
}

// ---- sampling
// -------------------------------------------------------------------------------------------------

class SamplingTest : public TokenDatasetTest {
 protected:
  static constexpr int64_t kTokens = 1003, kLength = 8, kWindows = kTokens / kLength;

  // Token i is i, so that a row tells where it begins.
  SamplingTest() {
    std::vector<uint16_t> tokens;
    for (int i = 0; i < kTokens; ++i) tokens.push_back(i);
    spec_.add_train(
        PutTokens("first.bin", std::vector<uint16_t>(tokens.begin(), tokens.begin() + 500)));
    spec_.add_train(
        PutTokens("second.bin", std::vector<uint16_t>(tokens.begin() + 500, tokens.end())));
  }
  std::vector<int32_t> Row(const TokenDataset& dataset, int64_t step, int64_t row,
                           int64_t global_batch) {
    std::vector<int32_t> tokens(kLength), targets(kLength);
    dataset.TrainRow(step, row, global_batch, tokens, targets);
    for (int64_t i = 0; i < kLength; ++i) {
      EXPECT_EQ(tokens[i], (tokens[0] + i) % kTokens);
      EXPECT_EQ(targets[i], (tokens[i] + 1) % kTokens);
    }
    return tokens;
  }
};

TEST_F(SamplingTest, EveryWindowOnceAnEpoch) {
  const auto dataset = Open(2000).value();
  std::vector<int32_t> offsets;
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    std::set<int32_t> starts;
    for (int64_t i = 0; i < kWindows; ++i) {
      starts.insert(Row(*dataset, epoch * kWindows + i, 0, 1)[0]);
    }
    EXPECT_EQ(static_cast<int64_t>(starts.size()), kWindows);
    const int32_t offset = *starts.begin() % kLength;
    EXPECT_LT(*starts.begin(), kLength);
    for (const int32_t start : starts) {
      EXPECT_EQ(start % kLength, offset) << "windows do not overlap";
    }
    offsets.push_back(offset);
  }
  EXPECT_GT(std::set<int32_t>(offsets.begin(), offsets.end()).size(), 1u)
      << "each epoch cuts elsewhere";
}

TEST_F(SamplingTest, TheOrderIsNotTheTexts) {
  const auto dataset = Open(2000).value();
  int ascending = 0;
  int32_t last = -1;
  for (int64_t i = 0; i < kWindows; ++i) {
    const int32_t start = Row(*dataset, i, 0, 1)[0];
    ascending += start > last;
    last = start;
  }
  EXPECT_NEAR(ascending, kWindows / 2, kWindows / 4);
}

TEST_F(SamplingTest, AnySplitOfTheBatchSeesTheSameRows) {
  const auto dataset = Open(2000).value();
  const auto again = Open(2000).value();  // a resumed process
  for (int64_t step = 30; step < 40; ++step) {
    for (int64_t row = 0; row < 12; ++row) {
      const std::vector<int32_t> expected = Row(*dataset, step, row, 12);
      EXPECT_EQ(Row(*again, step, row, 12), expected);
      EXPECT_EQ(Row(*dataset, step * 12 + row, 0, 1), expected)
          << "the stream of rows does not depend on the batch";
    }
  }
}

TEST_F(SamplingTest, SeedsDiffer) {
  const auto one = Open(2000, 1).value();
  const auto two = Open(2000, 2).value();
  int equal = 0;
  for (int64_t i = 0; i < 50; ++i) equal += Row(*one, i, 0, 1) == Row(*two, i, 0, 1);
  EXPECT_LT(equal, 10);
}

TEST_F(SamplingTest, TheHeldOutTailIsNeverTrainedOn) {
  spec_.set_validation_fraction(0.1);
  const auto dataset = Open(2000).value();
  EXPECT_EQ(dataset->tokens(Split::kTrain), 903);
  EXPECT_EQ(dataset->tokens(Split::kValidation), 100);
  std::vector<int32_t> tokens(kLength), targets(kLength);
  for (int64_t i = 0; i < 500; ++i) {
    dataset->TrainRow(i, 0, 1, tokens, targets);
    for (const int32_t target : targets) ASSERT_LT(target, 903);
  }
  dataset->ValidationRow(0, tokens, targets);
  EXPECT_EQ(tokens[0], 903);
  dataset->ValidationRow(11, tokens, targets);
  EXPECT_EQ(targets[7], 903 + 96);
  dataset->ValidationRow(12, tokens, targets);
  EXPECT_EQ(tokens[0], 903) << "wraps around";
}

TEST(PermutationTest, VisitsEveryValueOnce) {
  for (const uint64_t size : {1, 2, 3, 5, 16, 17, 1000, 4097}) {
    const Permutation permutation(size, size * 77);
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < size; ++i) {
      ASSERT_LT(permutation(i), size);
      seen.insert(permutation(i));
    }
    EXPECT_EQ(seen.size(), size);
  }
}

}  // namespace
}  // namespace terrace
