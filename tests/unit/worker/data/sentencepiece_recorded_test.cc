// SentencePiece models as their library encodes and decodes them: what
// make_sentencepiece_goldens.py recorded.
//
// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"
#include "worker/data/tokenizer.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

TEST(SentencePieceRecordedTest, IdsAndTextsEqualTheLibrarys) {
  const std::string path = (std::filesystem::temp_directory_path() /
                            ("terrace-" + std::to_string(::getpid()) + ".model"))
                               .string();
  std::ifstream file(std::string(TERRACE_TESTDATA) + "/sentencepiece.jsonl");
  int models = 0;
  for (std::string line; std::getline(file, line); ++models) {
    const Json recorded = Json::parse(line);
    std::string model;
    ASSERT_TRUE(absl::Base64Unescape(recorded["model"].get<std::string>(), &model));
    std::ofstream(path, std::ios::binary) << model;
    const auto tokenizer = Tokenizer::Load(path);
    std::filesystem::remove(path);
    ASSERT_TRUE(tokenizer.ok()) << recorded["name"] << ": " << tokenizer.status();
    for (const Json& one : recorded["encoded"]) {
      std::vector<int32_t> ids;
      (*tokenizer)->Encode(one["text"].get<std::string>(), &ids);
      EXPECT_EQ(ids, one["ids"].get<std::vector<int32_t>>()) << recorded["name"] << ": " << one;
    }
    for (const Json& one : recorded["decoded"]) {
      EXPECT_EQ((*tokenizer)->Decode(one["ids"].get<std::vector<int32_t>>()),
                one["text"].get<std::string>())
          << recorded["name"] << ": " << one;
    }
  }
  EXPECT_EQ(models, 20);
}

}  // namespace
}  // namespace terrace
