// SPDX-License-Identifier: Apache-2.0
#include "worker/data/chat/chat_renderer.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "base/utf8.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

constexpr size_t kSentenceBytesMax = 600;  // of what a template says

// The script is ours, but what runs in it is not: nothing of its answer is taken on trust.
absl::StatusOr<LineText> TextOf(const Json& answer) {
  const auto broken = [] {
    return absl::InternalError("what renders chat templates gave an answer that is none");
  };
  const auto text = answer.find("text"), answers = answer.find("answers");
  if (text == answer.end() || !text->is_string() || answers == answer.end() || !answers->is_array())
    return broken();
  LineText line = {.text = text->get<std::string>(), .is_chat = true};
  std::vector<TextSpan>& counted = line.counted.emplace();
  size_t end = 0;
  for (const Json& span : *answers) {
    if (!span.is_array() || span.size() != 2 || !span[0].is_number_unsigned() ||
        !span[1].is_number_unsigned()) {
      return broken();
    }
    counted.push_back({span[0].get<size_t>(), span[1].get<size_t>()});
    if (counted.back().begin < end || counted.back().end < counted.back().begin) {
      return absl::InvalidArgumentError(
          "the template's {% generation %} blocks stand within each other, so that what counts is "
          "not known; mend it, or set data.loss_on: all");
    }
    end = counted.back().end;
  }
  if (end > line.text.size()) return broken();
  return line;
}

}  // namespace

absl::StatusOr<LineText> ChatRenderer::Ask(std::string_view line) {
  ASSIGN_OR_RETURN(const std::string bytes, process_->Exchange(line));
  const Json answer = Json::parse(bytes, nullptr, /*allow_exceptions=*/false);
  if (answer.is_object() && answer.empty()) return LineText{};  // to what does not change
  if (!answer.is_object() || !answer.contains("error")) return TextOf(answer);
  std::string sentence = CleanLine(
      answer["error"].is_string() ? answer["error"].get<std::string>() : bytes, kSentenceBytesMax);
  if (answer.value("way", "") == "loss_on") {
    absl::StrAppend(&sentence,
                    "; give data.chat_template a template with {% generation %} around answers, or "
                    "set data.loss_on: all to count every token");
  }
  return absl::InvalidArgumentError(absl::StrCat(sentence, " (chat template: ", chat_.where, ")"));
}

absl::Status ChatRenderer::Start() {
  if (chat_.texts.empty()) {
    return absl::InvalidArgumentError(
        "a conversation needs a chat template, and the tokenizer has none beside it "
        "(tokenizer_config.json, chat_template.jinja); name a .jinja file with "
        "data.chat_template");
  }
  if (!options_.finds_special_tokens) {
    return absl::InvalidArgumentError(
        "a conversation needs a tokenizer that finds special tokens in a text, which a "
        "SentencePiece model does not; name the tokenizer.json of the same model in "
        "data.tokenizer");
  }
  if (process_ == nullptr) {
    ASSIGN_OR_RETURN(own_, TemplateProcess::Start());
    process_ = own_.get();
  }
  const Json setup = {{"templates", chat_.texts},
                      {"tokens", chat_.tokens},
                      {"answers", options_.answers && !options_.asks},
                      {"asks", options_.asks},
                      {"cpu_seconds", kTemplateCpuSecondsMax},
                      {"bytes_max", kRenderedBytesMax}};
  RETURN_IF_ERROR(Ask(setup.dump(-1, ' ', true, Json::error_handler_t::replace)).status());
  started_ = true;
  return absl::OkStatus();
}

absl::StatusOr<LineText> ChatRenderer::Render(std::string_view line) {
  if (!started_) RETURN_IF_ERROR(Start());
  ASSIGN_OR_RETURN(LineText text, Ask(line));
  if (!options_.answers) text.counted.reset();
  return text;
}

std::string ChatRenderer::fingerprint() const {
  return chat_.texts.empty() ? "" : absl::StrFormat("%016x", chat_.hash());
}

}  // namespace terrace
