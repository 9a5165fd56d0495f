// SPDX-License-Identifier: Apache-2.0
#include "worker/data/json_line.h"

#include <string>

#include "gmock/gmock.h"

namespace terrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Answer(const std::string& line) {
  const LineText text = TextOfJsonLine(line).value();
  return text.text.substr(text.counted.value().front().begin);
}

std::string ErrorOf(const std::string& line) {
  return std::string(TextOfJsonLine(line).status().message());
}

TEST(JsonLineTest, EachFormHasItsPrompt) {
  const LineText plain = TextOfJsonLine(R"({"text": "all", "id": 3})").value();
  EXPECT_EQ(plain.text, "all");
  EXPECT_FALSE(plain.counted.has_value());
  EXPECT_EQ(Answer(R"({"prompt": "2 + 2 = ", "completion": "4"})"), "4");
  EXPECT_EQ(Answer(R"({"instruction": "Add.", "input": "2, 2", "output": "4"})"), "4");
  EXPECT_EQ(Answer(R"({"text": "2 + 2 = 4", "prompt": "2 + 2 =", "completion": "4"})"), "4");
  EXPECT_EQ(TextOfJsonLine(R"({"text": "all", "prompt": 7})")->text, "all");
}

// What they say is for their template to judge.
TEST(JsonLineTest, ConversationsAreTold) {
  EXPECT_TRUE(TextOfJsonLine(R"({"messages": [], "text": "all", "prompt": "of others"})")->is_chat);
  EXPECT_TRUE(TextOfJsonLine(R"({"conversations": [], "messages": null})")->is_chat);
  EXPECT_FALSE(TextOfJsonLine(R"({"messages": null, "text": "all"})")->is_chat);
  EXPECT_FALSE(TextOfJsonLine(R"({"messages": [], "prompt": "a", "completion": "b"})")->is_chat);
  EXPECT_TRUE(TextOfJsonLine(R"({"prompt": [{}], "completion": [], "text": "a"})")->is_chat);
}

// As Stanford Alpaca's train.py writes it.
TEST(JsonLineTest, InstructionsStandInAlpacasWords) {
  EXPECT_EQ(TextOfJsonLine(R"({"instruction": "Add.", "input": "2, 2", "output": "4"})")->text,
            "Below is an instruction that describes a task, paired with an input that provides "
            "further context. Write a response that appropriately completes the request.\n\n### "
            "Instruction:\nAdd.\n\n### Input:\n2, 2\n\n### Response:4");
  const std::string bare =
      "Below is an instruction that describes a task. Write a response that appropriately "
      "completes the request.\n\n### Instruction:\nGreet.\n\n### Response:Hi";
  for (const char* line : {R"({"instruction": "Greet.", "output": "Hi"})",
                           R"({"instruction": "Greet.", "input": "", "output": "Hi"})",
                           R"({"instruction": "Greet.", "input": null, "output": "Hi"})"}) {
    EXPECT_EQ(TextOfJsonLine(line)->text, bare) << line;
  }
}

TEST(JsonLineTest, WhatIsWrongIsSaid) {
  EXPECT_THAT(ErrorOf(R"({"prompt": [], "completion": "b"})"),
              HasSubstr("\"prompt\" is a list, but \"completion\" is string"));
  EXPECT_THAT(ErrorOf(R"({"prompt": null, "completion": []})"), HasSubstr("both messages"));
  EXPECT_THAT(ErrorOf(R"({"prompt": "x"})"),
              AllOf(HasSubstr("no field \"completion\""), HasSubstr("each line must be")));
  EXPECT_THAT(ErrorOf(R"({"instruction": 3, "output": ""})"),
              HasSubstr("\"instruction\" is number, must be a string"));
  EXPECT_THAT(ErrorOf(R"({"body": "x"})"), HasSubstr("no field \"text\""));
  EXPECT_THAT(ErrorOf("[1]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(ErrorOf("{"), HasSubstr("each line must be"));
}

// ---- pairs of answers ---------------------------------------------------------------------------

// "prompt|chosen|rejected", of a conversation the lines that are rendered.
std::string PairOf(const std::string& line) {
  const LinePair pair = PairOfJsonLine(line).value();
  if (pair.chosen.is_chat) return pair.chosen.text + "|" + pair.rejected.text;
  const size_t begin = pair.chosen.counted.value().front().begin;
  EXPECT_EQ(pair.rejected.counted.value().front().begin, begin);
  EXPECT_EQ(pair.rejected.text.substr(0, begin), pair.chosen.text.substr(0, begin));
  return pair.chosen.text.substr(0, begin) + "|" + pair.chosen.text.substr(begin) + "|" +
         pair.rejected.text.substr(begin);
}

// As TRL's extract_prompt.
TEST(PairLineTest, ThePromptIsGivenOrWhatBothBeginWith) {
  EXPECT_EQ(PairOf(R"({"prompt": "2 + 2 = ", "chosen": "4", "rejected": "5"})"), "2 + 2 = |4|5");
  EXPECT_EQ(PairOf(R"({"chosen": "2 + 2 = 4", "rejected": "2 + 2 = 5"})"), "2 + 2 =| 4| 5");
  EXPECT_EQ(PairOf(R"({"prompt": null, "chosen": "so", "rejected": "no"})"), "|so|no");
  EXPECT_EQ(PairOf(R"({"chosen": "ab", "rejected": "abc"})"), "a|b|bc") << "each keeps something";
  // Characters of which only the last byte differs are whole.
  EXPECT_EQ(PairOf(R"({"chosen": "x\u00e4", "rejected": "x\u00e5"})"), "x|\u00e4|\u00e5");
}

TEST(PairLineTest, MessagesAreRenderedWithThePromptBefore) {
  EXPECT_EQ(
      PairOf(R"({"prompt": [{"a": 1}], "chosen": [{"b": 2}], "rejected": [{"c": 3}]})"),
      R"({"completion":[{"b":2}],"prompt":[{"a":1}]}|{"completion":[{"c":3}],"prompt":[{"a":1}]})");
  // Beside conversations a prompt in words says again what these begin with.
  EXPECT_EQ(PairOf(R"({"prompt": "a", "chosen": [1, 2], "rejected": [1, 3, 4]})"),
            R"({"completion":[2],"prompt":[1]}|{"completion":[3,4],"prompt":[1]})");
}

TEST(PairLineTest, WhatIsWrongIsSaid) {
  const auto error = [](const char* line) {
    return std::string(PairOfJsonLine(line).status().message());
  };
  EXPECT_THAT(error(R"({"prompt": "a", "chosen": "b"})"),
              AllOf(HasSubstr("no field \"rejected\""), HasSubstr("with train.preference")));
  EXPECT_THAT(error(R"({"chosen": "b", "rejected": []})"), HasSubstr("the other a list"));
  EXPECT_THAT(error(R"({"chosen": [1], "rejected": [2]})"), HasSubstr("there is no prompt"));
  EXPECT_THAT(error(R"({"prompt": [], "chosen": "a", "rejected": "b"})"),
              HasSubstr("\"prompt\" is a list"));
  EXPECT_THAT(error(R"({"prompt": 1, "chosen": "a", "rejected": "b"})"),
              HasSubstr("\"prompt\" is number"));
  EXPECT_THAT(error("{"), HasSubstr("with train.preference"));
  EXPECT_THAT(ErrorOf(R"({"prompt": "a", "chosen": "b", "rejected": "c"})"),
              HasSubstr("is trained on with train.preference"));
  EXPECT_THAT(ErrorOf(R"({"chosen": "b", "rejected": "c"})"),
              HasSubstr("is trained on with train.preference"));
}

}  // namespace
}  // namespace terrace
