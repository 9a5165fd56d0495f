// SPDX-License-Identifier: Apache-2.0
#include "worker/data/chat/chat_renderer.h"

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"

namespace terrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kPlain[] =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";
constexpr char kLine[] =
    R"({"messages": [{"role": "user", "content": "hü"}, {"role": "assistant", "content": "yo"}]})";

ChatTemplate Of(const std::string& text) {
  return {.where = "the.jinja", .texts = {{"default", text}}, .tokens = {}};
}

std::string ErrorOf(const std::string& text, const std::string& line = kLine,
                    ChatOptions options = {}) {
  const auto rendered = ChatRenderer(Of(text), options, nullptr).Render(line);
  EXPECT_EQ(rendered.status().code(), absl::StatusCode::kInvalidArgument) << rendered.status();
  const std::string message(rendered.status().message());
  EXPECT_THAT(message, Not(HasSubstr("\n")));
  EXPECT_LT(message.size(), 1200u);
  return message;
}

TEST(ChatRendererTest, AnswersAreCountedInBytes) {
  ChatRenderer chats(Of(kPlain), {}, nullptr);
  const LineText text = chats.Render(kLine).value();
  EXPECT_EQ(text.text, "<user>hü\n<assistant>yo\n");
  EXPECT_TRUE(text.is_chat);
  ASSERT_EQ(text.counted->size(), 1u);
  EXPECT_EQ(text.text.substr(text.counted->front().begin), "yo\n");
  EXPECT_EQ(text.counted->front().end, text.text.size());
}

TEST(ChatRendererTest, ShareGptIsTheSameInOtherWords) {
  ChatRenderer chats(Of(kPlain), {}, nullptr);
  const std::string line =
      R"({"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "h"}, )"
      R"({"from": "gpt", "value": "g"}]})";
  const LineText rendered = chats.Render(line).value();
  EXPECT_EQ(rendered.text, "<system>s\n<user>h\n<assistant>g\n");
  EXPECT_EQ(rendered.counted->size(), 1u);
}

// As TRL masks them: all behind the prompt counts, also where a template marks answers.
TEST(ChatRendererTest, ACompletionOfMessagesCountsAsAWhole) {
  constexpr char kPair[] =
      R"({"prompt": [{"role": "user", "content": "h"}], "completion": )"
      R"([{"role": "assistant", "content": "yo"}, {"role": "user", "content": "k"}]})";
  const std::string marked =
      "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}"
      "{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{{ '\\n' }}"
      "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
  for (const std::string& text : {std::string(kPlain), marked}) {
    ChatRenderer chats(Of(text), {}, nullptr);
    const LineText rendered = chats.Render(kPair).value();
    EXPECT_EQ(rendered.text, "<user>h\n<assistant>yo\n<user>k\n");
    ASSERT_EQ(rendered.counted->size(), 1u);
    EXPECT_EQ(rendered.text.substr(rendered.counted->front().begin), "yo\n<user>k\n");
    EXPECT_EQ(rendered.counted->front().end, rendered.text.size());
  }
}

TEST(ChatRendererTest, WhatIsWrongWithALineIsSaid) {
  EXPECT_THAT(ErrorOf(kPlain, R"({"prompt": [], "completion": [{"role": "user", "content": ""}]})"),
              HasSubstr("\"prompt\" must be a list of at least one message"));
  EXPECT_THAT(
      ErrorOf(kPlain, R"({"prompt": [{"role": "user", "content": "a"}], "completion": [3]})"),
      HasSubstr("completion[0] must be an object"));
  EXPECT_THAT(ErrorOf(kPlain, R"({"messages": []})"), HasSubstr("at least one message"));
  EXPECT_THAT(ErrorOf(kPlain, R"({"messages": "hi"})"), HasSubstr("must be a list"));
  EXPECT_THAT(ErrorOf(kPlain, R"({"messages": [3]})"), HasSubstr("messages[0] must be an object"));
  EXPECT_THAT(ErrorOf(kPlain, R"({"messages": [{"content": "x"}]})"),
              HasSubstr("messages[0] has no text as its \"role\""));
  EXPECT_THAT(ErrorOf(kPlain, R"({"messages": [{"role": "user"}]})"),
              HasSubstr("neither \"content\" nor \"tool_calls\""));
  EXPECT_THAT(ErrorOf(kPlain, R"({"messages": [{"role": "wizard", "content": "x"}]})"),
              AllOf(HasSubstr("the role \"wizard\""), HasSubstr("system, developer, user")));
  EXPECT_THAT(ErrorOf(kPlain, R"({"conversations": [{"from": "bird", "value": "x"}]})"),
              AllOf(HasSubstr("conversations[0] has \"from\": \"bird\""), HasSubstr("human")));
  EXPECT_THAT(ErrorOf(kPlain, R"({"messages": [{"role": "user", "content": "x"}], "tools": [1]})"),
              HasSubstr("\"tools\" must be a list of objects"));
}

TEST(ChatRendererTest, ARoleThatTheTemplateNamesIsKnown) {
  ChatRenderer chats(Of("{% for m in messages %}{% if m.role == 'wizard' %}*{{ m.content }}"
                        "{% endif %}{% endfor %}"),
                     {}, nullptr);
  EXPECT_EQ(chats.Render(R"({"messages": [{"role": "wizard", "content": "x"}]})")->text, "*x");
}

TEST(ChatRendererTest, WhatIsWrongWithATemplateIsSaid) {
  EXPECT_THAT(ErrorOf("a\n{% for m in %}"),
              AllOf(HasSubstr("cannot read line 2 of the template"), HasSubstr("the.jinja")));
  EXPECT_THAT(ErrorOf("\n\n{{ messages[9].content.x }}"),
              AllOf(HasSubstr("fails at its line 3"), HasSubstr("UndefinedError")));
  EXPECT_THAT(ErrorOf("{{ raise_exception('no\nsuch \\x1b[31mrole') }}"),
              AllOf(HasSubstr("the template refuses it: no"), Not(HasSubstr("\x1b"))));
  EXPECT_THAT(ErrorOf("{{ ''.__class__.__mro__ }}"), HasSubstr("SecurityError"));
  EXPECT_THAT(ErrorOf("{{ messages.append(1) }}"), HasSubstr("SecurityError"));
  EXPECT_THAT(ErrorOf("{% for i in range(99999) %}{% for j in range(9) %}{{ 'x' * 90 }}{% endfor %}"
                      "{% endfor %}"),
              HasSubstr("more than 16777216 bytes"));
  EXPECT_THAT(ErrorOf("{{ ('x' * 999999999) ~ ('y' * 999999999) }}"), HasSubstr("more memory"));
  EXPECT_THAT(ErrorOf("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), HasSubstr("too deeply"));
}

TEST(ChatRendererTest, ALoopWithoutEndEnds) {
  EXPECT_THAT(ErrorOf("{% for i in range(99999) %}{% for j in range(99999) %}{% for k in "
                      "range(99999) %}{% endfor %}{% endfor %}{% endfor %}"),
              AllOf(HasSubstr("more than 10 s"), HasSubstr("mend it")));
}

TEST(ChatRendererTest, AnswersThatCannotBeFoundAreRefusedUnlessAllCounts) {
  const std::string rewrites =
      "{% for m in messages %}{{ loop.revindex }}{{ m.content }}{% endfor %}";
  EXPECT_THAT(ErrorOf(rewrites),
              AllOf(HasSubstr("messages[1]"), HasSubstr("the.jinja"),
                    HasSubstr("data.loss_on: all"), HasSubstr("data.chat_template")));
  ChatRenderer all(Of(rewrites), {.answers = false}, nullptr);
  const LineText text = all.Render(kLine).value();
  EXPECT_EQ(text.text, "2hü1yo");
  EXPECT_FALSE(text.counted.has_value());
}

TEST(ChatRendererTest, ThereMustBeATemplateAndATokenizerForIt) {
  EXPECT_THAT(std::string(ChatRenderer({}, {}, nullptr).Render(kLine).status().message()),
              HasSubstr("data.chat_template"));
  EXPECT_THAT(ErrorOf(kPlain, kLine, {.finds_special_tokens = false}), HasSubstr("tokenizer.json"));
}

TEST(ChatRendererTest, TemplatesSeeTheDateAndNoEnvironment) {
  ChatRenderer hidden(Of("{{ environ }}|{{ self.__init__ }}|{{ os }}"), {.answers = false},
                      nullptr);
  EXPECT_EQ(hidden.Render(kLine)->text, "||");
  ChatRenderer date(Of("{{ strftime_now('%Y') }}"), {}, nullptr);
  const std::time_t now = std::time(nullptr);
  EXPECT_EQ(date.Render(kLine)->text, std::to_string(1900 + std::localtime(&now)->tm_year));
}

// What a machine lacks is no fault of the line.
TEST(ChatRendererTest, WithoutPythonTheWayOutIsSaid) {
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", "/nonexistent", 1);
  const auto rendered = ChatRenderer(Of(kPlain), {}, nullptr).Render(kLine);
  ::setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(rendered.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(rendered.status().message()), HasSubstr("python3-jinja2"));
}

// As version managers put in front of the real one.
TEST(TemplateProcessTest, ScriptsThatLookForPythonArePassedOver) {
  std::string folder = ::testing::TempDir() + "shims_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  std::ofstream(folder + "/python3") << "#!/bin/sh\nexit 1\n";
  std::filesystem::permissions(folder + "/python3", std::filesystem::perms::owner_all);
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", (folder + ":" + path).c_str(), 1);
  const std::string found = FindPython();
  ::setenv("PATH", folder.c_str(), 1);
  EXPECT_EQ(FindPython(), "");
  ::setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(found, FindPython());
  EXPECT_NE(found, "");
  std::filesystem::remove_all(folder);
}

TEST(TemplateProcessTest, IsGoneWithItsOwnerAndNeedsNoWork) {
  auto process = TemplateProcess::Start().value();
  process.reset();
  process = TemplateProcess::Start([](const std::string&) {
              return absl::InternalError("cannot be confined");
            }).value();
  EXPECT_THAT(std::string(process->Exchange("{}").status().message()),
              HasSubstr("--no-rank-sandbox"));
  EXPECT_FALSE(process->Exchange("{}").ok());
}

}  // namespace
}  // namespace terrace
