// SPDX-License-Identifier: Apache-2.0
#include "worker/tools/completion_answer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "nlohmann/json.hpp"

namespace terrace {
namespace {

using nlohmann::json;

// A token as a text of its own; bytes that are none are written as \xe9.
std::string TokenText(const Tokenizer& tokenizer, int32_t id) {
  return CleanText(tokenizer.Decode({id}));
}

// Tokens with their scores: four lists. `unscored` says that nothing stands before the first;
// `offset` is where it begins in its text.
json LogprobsOfText(std::span<const int32_t> ids, std::span<const TokenScore> scores, bool unscored,
                    size_t offset, const Tokenizer& tokenizer) {
  json tokens = json::array(), logprobs = json::array(), top = json::array(),
       offsets = json::array();
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string text = TokenText(tokenizer, ids[i]);
    tokens.push_back(text);
    offsets.push_back(offset);
    offset += tokenizer.Decode({ids[i]}).size();
    const size_t score = i - (unscored ? 1 : 0);
    if ((unscored && i == 0) || score >= scores.size()) {
      logprobs.push_back(nullptr);
      top.push_back(nullptr);
      continue;
    }
    logprobs.push_back(scores[score].logprob);
    json likeliest = json::object();
    // Of tokens that look alike the likeliest counts.
    for (const auto& [id, logprob] : scores[score].likeliest)
      likeliest.emplace(TokenText(tokenizer, id), logprob);
    top.push_back(std::move(likeliest));
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(top)},
          {"text_offset", std::move(offsets)}};
}

json TokenLogprob(const Tokenizer& tokenizer, int32_t id, double logprob) {
  json bytes = json::array();
  for (const char byte : tokenizer.Decode({id})) bytes.push_back(static_cast<uint8_t>(byte));
  return {{"token", TokenText(tokenizer, id)}, {"logprob", logprob}, {"bytes", std::move(bytes)}};
}

// The same in a chat: one list.
json LogprobsOfChat(std::span<const int32_t> ids, std::span<const TokenScore> scores,
                    const Tokenizer& tokenizer) {
  json content = json::array();
  for (size_t i = 0; i < std::min(ids.size(), scores.size()); ++i) {
    json token = TokenLogprob(tokenizer, ids[i], scores[i].logprob);
    token["top_logprobs"] = json::array();
    for (const auto& [id, logprob] : scores[i].likeliest)
      token["top_logprobs"].push_back(TokenLogprob(tokenizer, id, logprob));
    content.push_back(std::move(token));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

json Finish(const char* finish) { return finish == nullptr ? json(nullptr) : json(finish); }

json WholeChoice(const AnswerHead& head, const CompletionRequest& request, size_t index,
                 const Choice& choice, const Tokenizer& tokenizer) {
  json made = {{"index", index}, {"finish_reason", choice.finish}, {"logprobs", nullptr}};
  const int64_t first = request.echo ? 0 : choice.prompt_tokens;
  const auto ids = std::span(choice.ids).subspan(first);
  if (head.chat) {
    made["message"] = {{"role", "assistant"}, {"content", choice.text}};
    if (request.logprobs.has_value())
      made["logprobs"] = LogprobsOfChat(ids, choice.scores, tokenizer);
    return made;
  }
  const std::string before = request.echo ? request.texts[index / request.choices] : "";
  made["text"] = before + choice.text;
  if (request.logprobs.has_value())
    made["logprobs"] = LogprobsOfText(ids, choice.scores, first == 0, 0, tokenizer);
  return made;
}

json Usage(const CompletionRequest& request, std::span<const Choice> choices) {
  int64_t prompt_tokens = 0, new_tokens = 0;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i % request.choices == 0) prompt_tokens += choices[i].prompt_tokens;
    new_tokens += std::ssize(choices[i].ids) - choices[i].prompt_tokens;
  }
  return {{"prompt_tokens", prompt_tokens},
          {"completion_tokens", new_tokens},
          {"total_tokens", prompt_tokens + new_tokens}};
}

json Document(const AnswerHead& head, bool whole, json choices) {
  const char* object = !head.chat ? "text_completion"
                       : whole    ? "chat.completion"
                                  : "chat.completion.chunk";
  return {{"id", head.id},
          {"object", object},
          {"created", head.created_unix},
          {"model", head.model},
          {"choices", std::move(choices)}};
}

std::string Dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}
std::string Event(std::string_view data) { return absl::StrCat("data: ", Absl(data), "\n\n"); }

}  // namespace

std::string AnswerJson(const AnswerHead& head, const CompletionRequest& request,
                       std::span<const Choice> choices, const Tokenizer& tokenizer) {
  json made = json::array();
  for (size_t i = 0; i < choices.size(); ++i)
    made.push_back(WholeChoice(head, request, i, choices[i], tokenizer));
  json answer = Document(head, /*whole=*/true, std::move(made));
  answer["usage"] = Usage(request, choices);
  return Dump(answer) + "\n";
}

std::string PartEvent(const AnswerHead& head, const ChoicePart& part, const Tokenizer& tokenizer) {
  json made = {
      {"index", part.index}, {"finish_reason", Finish(part.finish)}, {"logprobs", nullptr}};
  if (head.chat) {
    made["delta"] = {{"content", part.text}};
    if (part.first) made["delta"]["role"] = "assistant";
    if (!part.scores.empty()) made["logprobs"] = LogprobsOfChat(part.ids, part.scores, tokenizer);
  } else {
    made["text"] = part.text;
    if (!part.scores.empty())
      made["logprobs"] =
          LogprobsOfText(part.ids, part.scores, /*unscored=*/false, part.offset, tokenizer);
  }
  return Event(Dump(Document(head, /*whole=*/false, json::array({std::move(made)}))));
}

std::string UsageEvent(const AnswerHead& head, const CompletionRequest& request,
                       std::span<const Choice> choices) {
  json answer = Document(head, /*whole=*/false, json::array());
  answer["usage"] = Usage(request, choices);
  return Event(Dump(answer));
}

std::string CompletionErrorJson(std::string_view message, std::string_view type) {
  return Dump({{"error", {{"message", message}, {"type", type}}}}) + "\n";
}

std::string ErrorEvent(std::string_view message) {
  return Event(Dump({{"error", {{"message", message}, {"type", "server_error"}}}}));
}

std::string LastEvent() { return Event("[DONE]"); }

}  // namespace terrace
