// SPDX-License-Identifier: Apache-2.0
#include "worker/data/special_tokens.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "worker/data/tokenizer.h"

namespace terrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

// A folder with a tokenizer whose added tokens are <pad>, <s>, <end> and <turn>, and files beside
// it.
class SpecialTokensTest : public ::testing::Test {
 protected:
  SpecialTokensTest()
      : folder_(std::filesystem::path(::testing::TempDir()) /
                ("special-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
    std::ifstream file(std::string(TERRACE_TESTDATA) + "/gpt2.json");
    tokenizer_ = Json::parse(file);
    first_ = static_cast<int32_t>(tokenizer_["model"]["vocab"].size());
    Json added = Json::array();
    for (const char* name : {"<pad>", "<s>", "<end>", "<turn>"}) {
      added.push_back({{"id", first_ + static_cast<int32_t>(added.size())},
                       {"content", name},
                       {"special", true}});
    }
    tokenizer_["added_tokens"] = added;
    Write("tokenizer.json", tokenizer_);
  }
  ~SpecialTokensTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, const Json& json) {
    std::ofstream(folder_ / name) << json.dump();
  }
  SpecialTokens Read(const Json& model_config = Json::object()) {
    return Tokenizer::Load(folder_.string(), model_config.dump()).value()->special_tokens();
  }
  std::string Refusal() {
    return std::string(Tokenizer::Load(folder_.string()).status().message());
  }
  std::string End(const Json& model_config = Json::object()) {
    const SpecialTokens tokens = Read(model_config);
    return tokens.end.has_value() ? tokens.end->text : "none";
  }

  const std::filesystem::path folder_;
  Json tokenizer_;
  int32_t first_ = 0;
};

TEST_F(SpecialTokensTest, TheTokenizersConfigNamesThem) {
  Write("tokenizer_config.json",
        {{"eos_token", "<end>"}, {"bos_token", {{"content", "<s>"}}}, {"pad_token", "<pad>"}});
  const SpecialTokens tokens = Read({{"eos_token_id", first_}});
  EXPECT_EQ(tokens.end->id, first_ + 2);
  EXPECT_EQ(tokens.begin->id, first_ + 1);
  EXPECT_EQ(tokens.padding->id, first_);
}

TEST_F(SpecialTokensTest, TheMapCountsUnlessTheConfigDescribesItsTokens) {
  Write("tokenizer_config.json", {{"eos_token", "<end>"}});
  Write("special_tokens_map.json", {{"eos_token", "<turn>"}});
  EXPECT_EQ(End(), "<turn>");
  Write("tokenizer_config.json",
        {{"eos_token", "<end>"}, {"added_tokens_decoder", Json::object()}});
  EXPECT_EQ(End(), "<end>");
}

TEST_F(SpecialTokensTest, ThenThePostProcessorThenTheIdsOfConfigs) {
  EXPECT_EQ(End(), "none") << "several tokens may be meant, and names are not guessed";
  Write("generation_config.json", {{"eos_token_id", {first_ + 3, first_ + 2}}});
  EXPECT_EQ(End(), "<turn>");
  Write("config.json", {{"eos_token_id", first_ + 2}});
  EXPECT_EQ(End(), "<end>");
  EXPECT_EQ(End({{"eos_token_id", first_ + 1}}), "<s>");
  EXPECT_EQ(End({{"eos_token_id", 5}}), "<end>") << "5 is ordinary text";
  tokenizer_["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       Json::array({{{"Sequence", {{"id", "A"}}}}, {{"SpecialToken", {{"id", "<turn>"}}}}})}};
  Write("tokenizer.json", tokenizer_);
  EXPECT_EQ(End({{"eos_token_id", first_ + 1}}), "<turn>");
}

TEST_F(SpecialTokensTest, GenerationStopsAtWhatItsSettingsNameBesides) {
  Write("tokenizer_config.json", {{"eos_token", "<end>"}});
  Write("generation_config.json", {{"eos_token_id", {first_ + 3, first_ + 2, 5}}});
  EXPECT_THAT(Read().stops, ElementsAre(first_ + 2, first_ + 3)) << "5 is ordinary text";
}

TEST_F(SpecialTokensTest, TheOnlySpecialTokenEndsDocuments) {
  tokenizer_["added_tokens"].erase(3);
  Write("tokenizer.json", tokenizer_);
  EXPECT_EQ(End(), "none");
  Write("tokenizer_config.json", {{"bos_token", "<s>"}, {"pad_token", "<pad>"}});
  EXPECT_EQ(End(), "<end>");
}

TEST_F(SpecialTokensTest, TheEndTokenIsPartOfTheFingerprint) {
  Write("tokenizer_config.json", {{"eos_token", "<end>"}});
  const std::string one = Tokenizer::Load(folder_.string()).value()->fingerprint();
  Write("tokenizer_config.json", {{"eos_token", "<turn>"}});
  EXPECT_NE(Tokenizer::Load(folder_.string()).value()->fingerprint(), one);
}

TEST_F(SpecialTokensTest, DamagedFilesAndStrangersAreErrors) {
  Write("tokenizer_config.json", {{"eos_token", "<none>"}});
  EXPECT_THAT(Refusal(), HasSubstr("eos_token is \"<none>\", must be a token of the tokenizer"));
  Write("tokenizer_config.json", {{"eos_token", 7}});
  EXPECT_THAT(Refusal(), HasSubstr("eos_token is 7, must be a text"));
  std::ofstream(folder_ / "tokenizer_config.json") << "{";
  EXPECT_THAT(Refusal(), HasSubstr("tokenizer_config.json is not a JSON object"));
}

TEST_F(SpecialTokensTest, LinksThatLeadNowhereAreErrors) {
  for (const char* name : {"generation_config.json", "special_tokens_map.json"}) {
    std::filesystem::create_symlink("nowhere", folder_ / name);
    EXPECT_THAT(Refusal(), HasSubstr(name));
    std::filesystem::remove(folder_ / name);
  }
  std::filesystem::remove(folder_ / "tokenizer.json");
  EXPECT_THAT(Refusal(), HasSubstr("holds neither a tokenizer.json nor a tokenizer.model"));
  std::filesystem::create_symlink("nowhere", folder_ / "tokenizer.json");
  std::ofstream(folder_ / "tokenizer.model") << "";
  EXPECT_THAT(Refusal(), HasSubstr("tokenizer.json: No such file"));
  std::filesystem::remove(folder_ / "tokenizer.json");
  std::filesystem::resize_file(folder_ / "tokenizer.model", int64_t{300} << 20);
  EXPECT_THAT(Refusal(), HasSubstr("more than the limit of"));
}

TEST_F(SpecialTokensTest, DeepFilesAreRefused) {
  const std::string deep = std::string(400'000, '[') + std::string(400'000, ']');
  std::ofstream(folder_ / "tokenizer_config.json") << "{\"eos_token\": " << deep << "}";
  EXPECT_THAT(Refusal(), HasSubstr("nested more than 64 deep"));
}

TEST_F(SpecialTokensTest, BytesStopWhereTheModelsConfigSays) {
  const auto bytes = Tokenizer::Load("bytes", R"({"eos_token_id": [0, 4]})").value();
  EXPECT_THAT(bytes->special_tokens().stops, ElementsAre(0, 4));
  EXPECT_EQ(bytes->end_of_text(), std::nullopt);
}

}  // namespace
}  // namespace terrace
