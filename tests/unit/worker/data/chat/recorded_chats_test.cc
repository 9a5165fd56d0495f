// SPDX-License-Identifier: Apache-2.0
// Texts, ids and masks were recorded from transformers by make_recorded_chats.py.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "worker/data/chat/chat_renderer.h"
#include "worker/data/counted_tokens.h"
#include "worker/data/tokenizer.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::vector<Json> Recorded() {
  std::ifstream file(TERRACE_RECORDED);
  std::vector<Json> all;
  for (std::string line; std::getline(file, line);) all.push_back(Json::parse(line));
  return all;
}

std::vector<Json> Families() {
  std::vector<Json> all = Recorded();
  return {all.begin() + 1, all.end()};
}

// The folder of a tokenizer with the template, as transformers saves it.
class Folder {
 public:
  explicit Folder(const Json& family) {
    std::string name = ::testing::TempDir() + "chat_XXXXXX";
    path_ = mkdtemp(name.data());
    std::ifstream base(std::string(TERRACE_TESTDATA) + "/" + family["base"].get<std::string>());
    Json document = Json::parse(base);
    document["added_tokens"] = family["added_tokens"];
    std::ofstream(path_ / "tokenizer.json") << document.dump();
    Json config = family["names"];
    config["chat_template"] = family["template"];
    std::ofstream(path_ / "tokenizer_config.json") << config.dump();
  }
  ~Folder() { fs::remove_all(path_); }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

std::string MaskOf(const std::vector<TokenSpan>& uncounted, size_t tokens) {
  std::string mask(tokens, '1');
  for (const TokenSpan& span : uncounted)
    std::fill(mask.begin() + span.begin, mask.begin() + span.end, '0');
  return mask;
}

class RecordedChatsTest : public ::testing::TestWithParam<Json> {
 protected:
  static void Compare(const Json& item, const std::string& line, const Tokenizer& tokenizer,
                      ChatRenderer& answers, ChatRenderer& all) {
    const auto text = answers.Render(line);
    if (item.contains("refused")) {
      EXPECT_FALSE(text.ok());
      return;
    }
    if (item["mask"].is_null()) {
      EXPECT_THAT(std::string(text.status().message()), ::testing::HasSubstr("data.loss_on: all"));
      const auto whole = all.Render(line);
      ASSERT_TRUE(whole.ok()) << whole.status();
      EXPECT_EQ(whole->text, item["text"]);
      EXPECT_FALSE(whole->counted.has_value());
      return;
    }
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(text->text, item["text"]);
    std::vector<int32_t> ids;
    const auto uncounted = EncodeCounted(tokenizer, text->text, *text->counted, &ids);
    EXPECT_EQ(ids, item["ids"].get<std::vector<int32_t>>()) << text->text;
    EXPECT_EQ(MaskOf(uncounted, ids.size()), item["mask"]) << text->text;
  }
};

TEST_P(RecordedChatsTest, TextIdsAndAnswersEqualTransformers) {
  const Folder folder(GetParam());
  const auto tokenizer = Tokenizer::Load(folder.path());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const ChatTemplate chat = ReadChatTemplate(folder.path(), "").value();
  ChatRenderer answers(chat, {}, nullptr), all(chat, {.answers = false}, nullptr);
  const Json lines = Recorded()[0]["lines"], items = GetParam()["items"];
  ASSERT_EQ(lines.size(), items.size());
  for (size_t i = 0; i < lines.size(); ++i) {
    SCOPED_TRACE(lines[i]);
    Compare(items[i], lines[i], **tokenizer, answers, all);
  }
}

std::string NameOf(const ::testing::TestParamInfo<Json>& info) { return info.param["family"]; }

INSTANTIATE_TEST_SUITE_P(Families, RecordedChatsTest, ::testing::ValuesIn(Families()), NameOf);

}  // namespace
}  // namespace terrace
