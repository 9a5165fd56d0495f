// SPDX-License-Identifier: Apache-2.0
#include "worker/data/chat/chat_template.h"

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class ChatTemplateTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "template_XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  void TearDown() override { fs::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
  }
  absl::StatusOr<ChatTemplate> Read(const std::string& file = "") {
    return ReadChatTemplate(folder_.string(), file);
  }
  std::string ErrorOf(const std::string& config) {
    Write("tokenizer_config.json", config);
    return std::string(Read().status().message());
  }

  fs::path folder_;
};

TEST_F(ChatTemplateTest, StandsInTheConfigOrInFilesBesideIt) {
  EXPECT_TRUE(Read()->texts.empty());
  Write("tokenizer_config.json", R"({"chat_template": "A", "bos_token": {"content": "<s>"}})");
  EXPECT_THAT(Read()->texts, ElementsAre(Pair("default", "A")));
  EXPECT_THAT(Read()->where, HasSubstr("tokenizer_config.json"));
  Write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]})");
  EXPECT_THAT(Read()->texts, ElementsAre(Pair("default", "A"), Pair("tool_use", "B")));
  Write("chat_template.jinja", "C");
  EXPECT_THAT(Read()->texts, ElementsAre(Pair("default", "C")));
  Write("additional_chat_templates/rag.jinja", "D");
  EXPECT_THAT(Read()->texts, ElementsAre(Pair("default", "C"), Pair("rag", "D")));
  // Beside the file of a tokenizer as in its folder; a file of one's own counts alone.
  EXPECT_EQ(ReadChatTemplate((folder_ / "tokenizer.json").string(), "")->texts, Read()->texts);
  Write("mine.jinja", "E");
  EXPECT_THAT(Read((folder_ / "mine.jinja").string())->texts, ElementsAre(Pair("default", "E")));
  EXPECT_THAT(ReadChatTemplate("bytes", (folder_ / "mine.jinja").string())->texts,
              ElementsAre(Pair("default", "E")));
}

TEST_F(ChatTemplateTest, TokensAreThoseOfTransformers) {
  Write(
      "tokenizer_config.json",
      R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": null, "image_token": "<i>",
            "add_bos_token": true, "extra_special_tokens": {"eoc_token": "<c>"}})");
  Write("special_tokens_map.json", R"({"eos_token": "<e>", "unk_token": {"content": "<unk>"}})");
  EXPECT_THAT(Read()->tokens, ElementsAre(Pair("bos_token", "<s>"), Pair("eoc_token", "<c>"),
                                          Pair("eos_token", "<e>"), Pair("image_token", "<i>"),
                                          Pair("unk_token", "<unk>")));
  Write("tokenizer_config.json", R"({"eos_token": "</s>", "added_tokens_decoder": {}})");
  EXPECT_THAT(Read()->tokens, ElementsAre(Pair("eos_token", "</s>"), Pair("unk_token", "<unk>")));
}

TEST_F(ChatTemplateTest, CachesTellTemplatesApart) {
  Write("tokenizer_config.json", R"({"chat_template": "A"})");
  const uint64_t first = Read()->hash();
  EXPECT_EQ(Read()->hash(), first);
  Write("tokenizer_config.json", R"({"chat_template": "B"})");
  const uint64_t second = Read()->hash();
  EXPECT_NE(second, first);
  Write("tokenizer_config.json", R"({"chat_template": "B", "bos_token": "<s>"})");
  EXPECT_NE(Read()->hash(), second);
}

TEST_F(ChatTemplateTest, WhatIsWrongIsSaid) {
  EXPECT_THAT(ErrorOf(R"({"chat_template": 3})"), HasSubstr("\"chat_template\" must be a text"));
  EXPECT_THAT(ErrorOf(R"({"chat_template": [{"name": "x"}]})"), HasSubstr("\"template\""));
  EXPECT_THAT(ErrorOf("{"), HasSubstr("tokenizer_config.json is not a JSON object"));
  fs::remove(folder_ / "tokenizer_config.json");
  EXPECT_THAT(std::string(Read((folder_ / "none.jinja").string()).status().message()),
              HasSubstr("data.chat_template"));
  Write("latin.jinja", "\xff");
  EXPECT_THAT(std::string(Read((folder_ / "latin.jinja").string()).status().message()),
              HasSubstr("not UTF-8"));
}

}  // namespace
}  // namespace terrace
