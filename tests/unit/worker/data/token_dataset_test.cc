// SPDX-License-Identifier: Apache-2.0
#include "worker/data/token_dataset.h"

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
  std::string PutTokens(const std::string& name, const std::vector<T>& tokens, const std::string& header = "") {
    return Put(name, header + std::string(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(T)));
  }
  absl::StatusOr<std::unique_ptr<TokenDataset>> Open(int64_t vocabulary = 256, int64_t seed = 1) {
    return TokenDataset::Open(spec_, vocabulary, seed, nullptr);
  }
  std::string OpenError(int64_t vocabulary = 256) {
    const auto dataset = Open(vocabulary);
    return dataset.ok() ? "" : std::string(dataset.status().message());
  }
  // All of train in order, seen through windows of a one-epoch permutation, is tested below; here validation shows it.
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
  auto dataset = TokenDataset::Open(spec_, 256, 1, [&](std::string_view, double) { ++calls; }).value();
  EXPECT_GT(calls, 0);
  EXPECT_EQ(dataset->tokens(Split::kTrain), 100);
  EXPECT_EQ(dataset->tokens(Split::kValidation), 17);
  std::vector<int32_t> tokens(8), targets(8);
  dataset->ValidationRow(1, tokens, targets);
  EXPECT_EQ(tokens[0], '8');
  EXPECT_EQ(targets[7], 'X');
  calls = 0;
  ASSERT_TRUE(TokenDataset::Open(spec_, 256, 1, [&](std::string_view, double) { ++calls; }).ok());
  EXPECT_EQ(calls, 0) << "the second time nothing is tokenised";
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
