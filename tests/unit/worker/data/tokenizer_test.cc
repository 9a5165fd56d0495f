// SPDX-License-Identifier: Apache-2.0
// The expected ids were recorded from the reference libraries by make_tokenizer_goldens.py.
#include "worker/data/tokenizer.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "gmock/gmock.h"

namespace terrace {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

std::string Data(const std::string& name) { return std::string(TERRACE_TESTDATA) + "/" + name; }

Json ReadJson(const std::string& name) {
  std::ifstream file(Data(name));
  return Json::parse(file);
}

class GoldenTest : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenTest, IdsEqualTheReferenceLibrary) {
  const auto tokenizer = Tokenizer::Load(Data(GetParam())).value();
  const std::string style = std::filesystem::path(GetParam()).stem().string();
  int compared = 0;
  for (const Json& item : ReadJson("cases.json")) {
    if (!item["ids"].contains(style)) continue;
    const std::string text = item["text"];
    std::vector<int32_t> ids;
    tokenizer->Encode(text, &ids);
    EXPECT_EQ(ids, item["ids"][style].get<std::vector<int32_t>>()) << item["text"];
    ++compared;
  }
  EXPECT_GT(compared, 100);
}

INSTANTIATE_TEST_SUITE_P(Styles, GoldenTest,
                         ::testing::Values("gpt2.json", "llama3.json", "qwen.json", "digits.json",
                                           "unigram.model", "spbpe.model"));

class RoundTripTest : public ::testing::TestWithParam<const char*> {};

TEST_P(RoundTripTest, DecodeGivesTheTextBack) {
  const auto tokenizer =
      Tokenizer::Load(GetParam() == std::string("bytes") ? "bytes" : Data(GetParam())).value();
  std::string every_byte;
  for (int i = 0; i < 1024; ++i) every_byte.push_back(static_cast<char>(i * 37 % 256));
  for (const std::string& text :
       {std::string("Hello,  world\n\n 1234 caf\u00e9 \u4f60\u597d"), every_byte, std::string()}) {
    std::vector<int32_t> ids;
    tokenizer->Encode(text, &ids);
    EXPECT_EQ(tokenizer->Decode(ids), text);
    for (const int32_t id : ids) EXPECT_LT(id, tokenizer->vocabulary());
  }
}

INSTANTIATE_TEST_SUITE_P(Lossless, RoundTripTest,
                         ::testing::Values("bytes", "gpt2.json", "llama3.json", "digits.json"));

TEST(TokenizerTest, EndOfTextIsTheAddedToken) {
  EXPECT_EQ(Tokenizer::Load("bytes").value()->end_of_text(), std::nullopt);
  for (const char* name : {"gpt2.json", "llama3.json", "qwen.json"}) {
    const auto tokenizer = Tokenizer::Load(Data(name)).value();
    ASSERT_TRUE(tokenizer->end_of_text().has_value());
    EXPECT_EQ(*tokenizer->end_of_text(), tokenizer->vocabulary() - 1);
    EXPECT_THAT(tokenizer->Decode({*tokenizer->end_of_text()}), HasSubstr("<|end"));
  }
  EXPECT_EQ(Tokenizer::Load(Data("unigram.model")).value()->end_of_text(), 2);
}

TEST(TokenizerTest, AnAddedTokenInTheTextIsThatToken) {
  const auto tokenizer = Tokenizer::Load(Data("gpt2.json")).value();
  std::vector<int32_t> ids;
  tokenizer->Encode("<|endoftext|>", &ids);
  EXPECT_EQ(ids, std::vector<int32_t>{*tokenizer->end_of_text()});
  EXPECT_EQ(tokenizer->Decode(ids), "<|endoftext|>");
}

TEST(TokenizerTest, FingerprintsDiffer) {
  const auto a = Tokenizer::Load(Data("gpt2.json")).value();
  const auto b = Tokenizer::Load(Data("llama3.json")).value();
  EXPECT_NE(a->fingerprint(), b->fingerprint());
}

// A definition with one thing changed; returns the refusal.
class RefusalTest : public ::testing::Test {
 protected:
  RefusalTest() : definition_(ReadJson("qwen.json")) {
    path_ = (std::filesystem::temp_directory_path() /
             ("terrace-" + std::to_string(::getpid()) + ".json"))
                .string();
  }
  ~RefusalTest() override { std::filesystem::remove(path_); }
  std::string Load() { return LoadText(definition_.dump()); }
  std::string LoadText(const std::string& text) {
    std::ofstream(path_) << text;
    const auto tokenizer = Tokenizer::Load(path_);
    return tokenizer.ok() ? "" : std::string(tokenizer.status().message());
  }
  Json definition_;
  std::string path_;
};

TEST_F(RefusalTest, UnchangedItLoads) { EXPECT_EQ(Load(), ""); }

TEST_F(RefusalTest, NamesWhatCannotBeDoneExactly) {
  struct Case {
    const char* pointer;
    Json value;
    const char* message;
  };
  const Case cases[] = {
      {"/model/type", "WordPiece", "model.type is WordPiece, must be BPE or Unigram"},
      {"/model/byte_fallback", "yes", "model.byte_fallback is \"yes\", must be true or false"},
      {"/model/ignore_merges", 1, "model.ignore_merges is 1, must be true or false"},
      {"/model/unk_token", "<none>", "model.unk_token is <none>, must be a token of model.vocab"},
      {"/added_tokens/0/lstrip", "no", "added_tokens[0].lstrip is \"no\", must be true or false"},
      {"/version", "2.0", "version is 2.0, must be 1.0"},
      {"/model/dropout", 0.1, "model.dropout is 0.1"},
      {"/model/end_of_word_suffix", "</w>", "model.end_of_word_suffix is </w>"},
      {"/normalizer",
       {{"type", "BertNormalizer"}},
       "normalizer is BertNormalizer, must be null, NFC"},
      {"/pre_tokenizer", {{"type", "UnicodeScripts"}}, "pre_tokenizer is UnicodeScripts"},
      {"/decoder", {{"type", "CTC"}}, "decoder is CTC, must be null, ByteLevel"},
      {"/normalizer", {{"type", "Replace"}, {"pattern", 1}}, "Replace.pattern is something else"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "(?<=a)b", "cannot be used"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\bfoo", "\\b is not supported"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "[[:alpha:]]+", "[: is not supported"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "[a-z&&[^e]]", "&& in a class is not"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "[a[^b]]", "[^ in a class is not"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "(?m:.)", "(?m: is not supported"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\w+", "\\w is not supported"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "x*", "matches nothing at all"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\s+(?!\\S)|\\s+", "begins with"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "a|\\s+(?!\\S)|$", "matches nothing at all"},
      {"/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\p", "\\p without a name"},
      {"/normalizer", {{"type", "Prepend"}, {"prepend", ""}}, "Prepend.prepend is empty"},
      {"/pre_tokenizer/pretokenizers/0/behavior", "Merged", "must be Removed, Isolated"},
      {"/model/merges/0", "zzzz", "left right"},
      {"/model/merges/0", {"zzzz", "q"}, "zzzz, which is not in model.vocab"},
      {"/model/vocab", Json::object(), "which is not in model.vocab"},
      {"/model/vocab/a", -1, "the id of a must be"},
  };
  for (const Case& item : cases) {
    definition_ = ReadJson("qwen.json");
    definition_[Json::json_pointer(item.pointer)] = item.value;
    EXPECT_THAT(Load(), HasSubstr(item.message)) << item.pointer;
  }
}

// What tokenizers 0.23 refuses and what it loads, as pre-tokenizer and as decoder.
TEST_F(RefusalTest, MetaspaceAsTheLibraryReadsIt) {
  struct Case {
    const char* keys;
    const char* message;  // "": it loads
  };
  const Case cases[] = {
      {R"({})", ".replacement is not there, must be one character"},
      {R"({"replacement":null})", ".replacement is not there, must be one character"},
      {R"({"replacement":""})", ".replacement is empty, must be one character"},
      {R"({"replacement":"ab"})", ".replacement is ab, must be one character"},
      {R"({"replacement":"_"})", ""},
      {R"({"replacement":"_","prepend_scheme":null})", ".prepend_scheme is null, must be always"},
      {R"({"replacement":"_","prepend_scheme":"last"})", ".prepend_scheme is last, must be always"},
      {R"({"replacement":"_","add_prefix_space":null})", ""},
      {R"({"replacement":"_","add_prefix_space":true})", ""},
      {R"({"replacement":"_","add_prefix_space":false})",
       ".add_prefix_space is false, must be true or left out where prepend_scheme is left out"},
      {R"({"replacement":"_","add_prefix_space":false,"prepend_scheme":"first"})",
       "where prepend_scheme is first"},
      {R"({"replacement":"_","add_prefix_space":false,"prepend_scheme":"never"})", ""},
      {R"({"replacement":"_","add_prefix_space":true,"prepend_scheme":"never"})", ""},
      {R"({"replacement":"_","add_prefix_space":"x"})", "must be true or false"},
  };
  for (const Case& item : cases) {
    Json keys = Json::parse(item.keys);
    keys["type"] = "Metaspace";
    for (const std::string where : {"pre_tokenizer", "decoder"}) {
      definition_ = ReadJson("qwen.json");
      definition_[where] = keys;
      const std::string message = Load();
      if (*item.message == '\0') {
        EXPECT_EQ(message, "") << where << " " << item.keys;
      } else {
        EXPECT_THAT(message,
                    HasSubstr(where + " Metaspace" + (*item.message == '.' ? item.message : "")));
        EXPECT_THAT(message, HasSubstr(item.message)) << where << " " << item.keys;
      }
    }
  }
}

TEST_F(RefusalTest, AddedTokensThatCannotBeToldApart) {
  const auto added = [](const char* content) {
    return Json{{"id", 9}, {"content", content}, {"normalized", true}};
  };
  definition_["added_tokens"] = {added("\u00e9"), added("e\u0301")};
  EXPECT_THAT(Load(), HasSubstr("chance decides between them"));
  definition_["added_tokens"] = {added("a"), {{"id", 9}, {"content", "a"}, {"lstrip", true}}};
  EXPECT_THAT(Load(), HasSubstr("stands there twice with other options"));
  definition_["added_tokens"] = {added("a"), added("a")};
  EXPECT_EQ(Load(), "");
  definition_["normalizer"] = {{"type", "Strip"}};
  definition_["added_tokens"] = {added("  ")};
  EXPECT_THAT(Load(), HasSubstr("leaves nothing of the added token"));
}

TEST_F(RefusalTest, DamagedFilesNeverCrash) {
  const std::string good = definition_.dump();
  for (size_t cut = 0; cut < good.size(); cut += 997) EXPECT_NE(LoadText(good.substr(0, cut)), "");
  EXPECT_THAT(LoadText(std::string(1 << 20, '[')), HasSubstr("nested too deeply"));
  EXPECT_NE(LoadText("[]"), "");
}

TEST(TokenizerTest, MissingAndUnknownNamesAreErrors) {
  EXPECT_EQ(Tokenizer::Load("/nowhere/tokenizer.json").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(Tokenizer::Load("/nowhere/x.model").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(Tokenizer::Load("byte").status().message()),
              HasSubstr("must be \"bytes\""));
  EXPECT_EQ(Tokenizer::Load(Data("gpt2.json") + "/../cases.json").status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace terrace
