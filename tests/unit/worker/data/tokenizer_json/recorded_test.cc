// SPDX-License-Identifier: Apache-2.0
// The expected ids were recorded from the tokenizers library by make_recorded_ids.py.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "worker/data/tokenizer.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

Json ReadJson(const std::string& path) {
  std::ifstream file(path);
  return Json::parse(file);
}

std::vector<Json> Forms() {
  std::ifstream file(TERRACE_RECORDED);
  std::vector<Json> forms;
  for (std::string line; std::getline(file, line);) forms.push_back(Json::parse(line));
  return forms;
}

class RecordedTest : public ::testing::TestWithParam<Json> {};

TEST_P(RecordedTest, IdsEqualTheReferenceLibrary) {
  Json document =
      ReadJson(std::string(TERRACE_TESTDATA) + "/" + GetParam()["base"].get<std::string>());
  document.merge_patch(GetParam()["change"]);
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) /
                                     ("terrace-" + std::to_string(::getpid()) + ".json");
  std::ofstream(path) << document.dump();
  const auto tokenizer = Tokenizer::Load(path.string());
  std::filesystem::remove(path);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (const Json& item : GetParam()["items"]) {
    std::vector<int32_t> ids;
    (*tokenizer)->Encode(item["text"].get<std::string>(), &ids);
    EXPECT_EQ(ids, item["ids"].get<std::vector<int32_t>>()) << item["text"];
    if (item.contains("decoded")) {
      EXPECT_EQ((*tokenizer)->Decode(ids), item["decoded"]);
    }
    for (const int32_t id : ids) EXPECT_LT(id, (*tokenizer)->vocabulary());
  }
}

std::string NameOf(const ::testing::TestParamInfo<Json>& info) {
  std::string name = std::filesystem::path(info.param["base"].get<std::string>()).stem().string() +
                     "_" + info.param["name"].get<std::string>();
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Forms, RecordedTest, ::testing::ValuesIn(Forms()), NameOf);

}  // namespace
}  // namespace terrace
