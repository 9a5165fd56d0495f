// A folder with the files of a data set, and the data set opened from them.
//
// Used by one thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "worker/data/token_dataset.h"

namespace terrace {

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
      dataset.ValidationRow(i, {.tokens = tokens, .targets = targets});
      all.insert(all.end(), tokens.begin(), tokens.end());
    }
    return all;
  }

  std::string folder_;
  v1::DataSpec spec_;
  v1::TrainSpec train_;
};

inline std::string Letters(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text.push_back(static_cast<char>('a' + i % 26));
  return text;
}

}  // namespace terrace
