// SPDX-License-Identifier: Apache-2.0
#include "worker/tools/completion_request.h"

#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "nlohmann/json.hpp"

namespace terrace {
namespace {

using nlohmann::json;

constexpr int64_t kPromptsMax = 1024, kChoicesMax = 128, kLogprobsMax = 20, kStopsMax = 16;
constexpr int64_t kTokensByDefault = 16;  // OpenAI's

absl::Status Refuse(std::string_view key, const json& value, std::string_view rule) {
  constexpr size_t kShown = 80;
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  return absl::InvalidArgumentError(absl::StrCat(Absl(key), ": got ", text, ", must ", Absl(rule)));
}

// An object; discarded where the text is none, or is nested so deeply that to walk through it would
// overflow the stack.
json ParseObject(std::string_view text) {
  constexpr int kDepthMax = 64;
  bool too_deep = false;
  json parsed = json::parse(
      text,
      [&too_deep](int depth, json::parse_event_t, json&) {
        too_deep = too_deep || depth > kDepthMax;
        return !too_deep;
      },
      /*allow_exceptions=*/false);
  return too_deep || !parsed.is_object() ? json(json::value_t::discarded) : parsed;
}

// Keys that ask for nothing where they have this value, or any.
struct Harmless {
  std::string_view key;
  json only;  // discarded: any value
};
const std::vector<Harmless>& HarmlessKeys() {
  static const std::vector<Harmless> keys = {{"model", json(json::value_t::discarded)},
                                             {"user", json(json::value_t::discarded)},
                                             {"stream", false},
                                             {"best_of", 1},
                                             {"suffix", ""},
                                             {"frequency_penalty", 0},
                                             {"presence_penalty", 0},
                                             {"logit_bias", json::object()}};
  return keys;
}

class Reader {
 public:
  Reader(const json& request, const Tokenizer& tokenizer, const CompletionLimits& limits)
      : request_(request), tokenizer_(tokenizer), limits_(limits) {}

  absl::StatusOr<CompletionRequest> Read() {
    RETURN_IF_ERROR(ReadPrompts());
    RETURN_IF_ERROR(ReadNumbers());
    RETURN_IF_ERROR(ReadStops());
    for (const auto& [key, value] : request_.items()) {
      if (!known_.contains(key)) RETURN_IF_ERROR(CheckHarmless(key, value));
    }
    RETURN_IF_ERROR(CheckLengths());
    return std::move(read_);
  }

 private:
  // Null counts as absent, as OpenAI's clients send it.
  const json* Find(const char* key) {
    known_.insert(key);
    const auto found = request_.find(key);
    return found == request_.end() || found->is_null() ? nullptr : &*found;
  }

  absl::Status ReadPrompts() {
    const json* prompt = Find("prompt");
    if (prompt == nullptr)
      return Refuse("prompt", nullptr, "be a text, a list of texts, tokens, or lists of tokens");
    const bool several = prompt->is_array() && !prompt->empty() && !prompt->front().is_number();
    if (!several) return AddPrompt(*prompt);
    if (std::ssize(*prompt) > kPromptsMax)
      return Refuse("prompt", prompt->size(), absl::StrCat("be at most ", kPromptsMax, " prompts"));
    for (const json& one : *prompt) RETURN_IF_ERROR(AddPrompt(one));
    return absl::OkStatus();
  }

  absl::Status AddPrompt(const json& prompt) {
    std::vector<int32_t> ids;
    if (prompt.is_string()) {
      tokenizer_.Encode(prompt.get_ref<const std::string&>(), &ids);
    } else if (prompt.is_array()) {
      for (const json& id : prompt) {
        if (!id.is_number_integer() || id < 0 || id >= limits_.vocabulary)
          return Refuse("prompt", id, absl::StrCat("be a token below ", limits_.vocabulary));
        ids.push_back(id.get<int32_t>());
      }
    } else {
      return Refuse("prompt", prompt, "be a text or a list of tokens");
    }
    if (ids.empty()) return Refuse("prompt", prompt, "have at least one token");
    if (const absl::Status known = CheckIds(ids, limits_.vocabulary); !known.ok())
      return absl::InvalidArgumentError(absl::StrCat("prompt: ", known.message()));
    read_.texts.push_back(prompt.is_string() ? prompt.get<std::string>() : tokenizer_.Decode(ids));
    read_.prompts.push_back(std::move(ids));
    return absl::OkStatus();
  }

  template <typename Number>
  absl::Status Read(const char* key, double least, double most, Number* number) {
    const json* value = Find(key);
    if (value == nullptr) return absl::OkStatus();
    const bool fits = std::is_integral_v<Number> ? value->is_number_integer() : value->is_number();
    if (!fits || value->get<double>() < least || value->get<double>() > most) {
      return Refuse(key, *value,
                    absl::StrCat("be ", std::is_integral_v<Number> ? "a whole number" : "a number",
                                 " from ", least, " to ", most));
    }
    *number = value->get<Number>();
    return absl::OkStatus();
  }

  absl::Status ReadNumbers() {
    constexpr double kAny = 1e9;
    SamplerOptions& sampler = read_.each.sampler;
    sampler = {.temperature = 1};
    read_.each.tokens = kTokensByDefault;
    int64_t seed = 0, logprobs = -1;
    RETURN_IF_ERROR(Read("max_tokens", 0, kAny, &read_.each.tokens));
    RETURN_IF_ERROR(Read("n", 1, kChoicesMax, &read_.choices));
    RETURN_IF_ERROR(Read("temperature", 0, 100, &sampler.temperature));
    RETURN_IF_ERROR(Read("top_p", 0, 1, &sampler.top_p));
    RETURN_IF_ERROR(Read("top_k", 0, kAny, &sampler.top_k));
    RETURN_IF_ERROR(Read("min_p", 0, 1, &sampler.min_p));
    RETURN_IF_ERROR(Read("repetition_penalty", 0.01, 100, &sampler.repetition_penalty));
    RETURN_IF_ERROR(Read("seed", std::numeric_limits<int32_t>::min(), kAny * kAny, &seed));
    RETURN_IF_ERROR(Read("logprobs", 0, kLogprobsMax, &logprobs));
    sampler.seed = static_cast<uint64_t>(seed);
    if (logprobs >= 0) read_.logprobs = logprobs;
    if (const json* echo = Find("echo"); echo != nullptr) {
      if (!echo->is_boolean()) return Refuse("echo", *echo, "be true or false");
      read_.echo = echo->get<bool>();
    }
    return absl::OkStatus();
  }

  absl::Status ReadStops() {
    const json* stop = Find("stop");
    if (stop == nullptr) return absl::OkStatus();
    const json stops = stop->is_string() ? json::array({*stop}) : *stop;
    if (!stops.is_array() || std::ssize(stops) > kStopsMax)
      return Refuse("stop", *stop, absl::StrCat("be a text or up to ", kStopsMax, " texts"));
    for (const json& one : stops) {
      if (!one.is_string() || one.get_ref<const std::string&>().empty())
        return Refuse("stop", one, "be a text that is not empty");
      read_.each.stops.push_back(one);
    }
    return absl::OkStatus();
  }

  static absl::Status CheckHarmless(const std::string& key, const json& value) {
    for (const Harmless& harmless : HarmlessKeys()) {
      if (harmless.key != key) continue;
      if (harmless.only.is_discarded() || value.is_null() || value == harmless.only)
        return absl::OkStatus();
      return Refuse(key, value, absl::StrCat("be ", harmless.only.dump(), " or left out here"));
    }
    return Refuse(CleanLine(key), value, "be left out: this server does not know it");
  }

  absl::Status CheckLengths() const {
    for (const std::vector<int32_t>& prompt : read_.prompts) {
      const auto size = static_cast<int64_t>(prompt.size());
      if (size <= limits_.max_length - read_.each.tokens) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("max_tokens: got ", read_.each.tokens, " behind a prompt of ", size,
                       " tokens, must leave both within the context of ", limits_.max_length,
                       "; shorten the prompt, ask for less, or start with a larger --context"));
    }
    return absl::OkStatus();
  }

  const json& request_;
  const Tokenizer& tokenizer_;
  const CompletionLimits& limits_;
  std::set<std::string> known_;
  CompletionRequest read_;
};

// A token as a text of its own; bytes that are none are written as \xe9.
std::string TokenText(const Tokenizer& tokenizer, int32_t id) {
  return CleanText(tokenizer.Decode({id}));
}

// What the tokens from `first` on are, as texts of their own, with their scores.
json LogprobsJson(const Choice& choice, int64_t first, const Tokenizer& tokenizer) {
  json tokens = json::array(), logprobs = json::array(), top = json::array(),
       offsets = json::array();
  // Nothing stands before the first token of a text: it has no score.
  auto score = choice.scores.begin();
  size_t offset = 0;
  for (int64_t i = first; i < std::ssize(choice.ids); ++i) {
    const std::string text = TokenText(tokenizer, choice.ids[i]);
    tokens.push_back(text);
    offsets.push_back(offset);
    offset += text.size();
    if (i == 0 || score == choice.scores.end()) {
      logprobs.push_back(nullptr);
      top.push_back(nullptr);
      continue;
    }
    logprobs.push_back(score->logprob);
    json likeliest = json::object();
    // Of tokens that look alike the likeliest counts.
    for (const auto& [id, logprob] : score->likeliest)
      likeliest.emplace(TokenText(tokenizer, id), logprob);
    top.push_back(std::move(likeliest));
    ++score;
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(top)},
          {"text_offset", std::move(offsets)}};
}

std::string Line(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace

absl::StatusOr<CompletionRequest> ReadCompletionRequest(std::string_view text,
                                                        const Tokenizer& tokenizer,
                                                        const CompletionLimits& limits) {
  const json request = ParseObject(text);
  if (request.is_discarded()) {
    return absl::InvalidArgumentError(
        "the body must be a JSON object of at most 64 levels, as {\"prompt\": \"Once\"}");
  }
  return Reader(request, tokenizer, limits).Read();
}

std::string CompletionJson(const CompletionRequest& request, const CompletionAnswer& answer,
                           const Tokenizer& tokenizer) {
  json choices = json::array();
  int64_t prompt_tokens = 0, new_tokens = 0;
  for (size_t i = 0; i < answer.choices.size(); ++i) {
    const Choice& choice = answer.choices[i];
    const size_t prompt = i / request.choices;
    const std::string before = request.echo ? request.texts[prompt] : "";
    json made = {{"index", i}, {"text", before + choice.text}, {"finish_reason", choice.finish}};
    made["logprobs"] = nullptr;
    if (request.logprobs.has_value())
      made["logprobs"] = LogprobsJson(choice, request.echo ? 0 : choice.prompt_tokens, tokenizer);
    choices.push_back(std::move(made));
    if (i % request.choices == 0) prompt_tokens += choice.prompt_tokens;
    new_tokens += std::ssize(choice.ids) - choice.prompt_tokens;
  }
  return Line({{"id", answer.id},
               {"object", "text_completion"},
               {"created", answer.created_unix},
               {"model", answer.model},
               {"choices", std::move(choices)},
               {"usage",
                {{"prompt_tokens", prompt_tokens},
                 {"completion_tokens", new_tokens},
                 {"total_tokens", prompt_tokens + new_tokens}}}});
}

absl::StatusOr<ChatRequest> ReadChatRequest(std::string_view text) {
  json request = ParseObject(text);
  if (request.is_discarded() || !request.contains("messages"))
    return absl::InvalidArgumentError(
        "the body must be a JSON object of at most 64 levels with messages, as {\"messages\": "
        "[{\"role\": \"user\", "
        "\"content\": \"Hello\"}]}");
  json line = json::object();
  for (const char* key : {"messages", "tools", "documents", "chat_template_kwargs"}) {
    if (const auto found = request.find(key); found != request.end()) {
      line[key] = std::move(*found);
      request.erase(found);
    }
  }
  // The newer name.
  if (const auto newer = request.find("max_completion_tokens"); newer != request.end()) {
    if (!newer->is_null()) request["max_tokens"] = *newer;
    request.erase("max_completion_tokens");
  }
  for (const char* key : {"prompt", "echo"}) {
    if (request.contains(key)) return Refuse(key, request[key], "be left out of a chat");
  }
  if (const json logprobs = request.value("logprobs", json()); !logprobs.is_null()) {
    if (logprobs != false) return Refuse("logprobs", logprobs, "be false or left out of a chat");
    request.erase("logprobs");
  }
  const auto dumped = [](const json& value) {
    return value.dump(-1, ' ', true, json::error_handler_t::replace);
  };
  return ChatRequest{.line = dumped(line), .request = dumped(request)};
}

absl::StatusOr<CompletionRequest> ReadAnswerRequest(const ChatRequest& chat,
                                                    const std::string& text,
                                                    const Tokenizer& tokenizer,
                                                    const CompletionLimits& limits) {
  json request = json::parse(chat.request);
  std::vector<int32_t> ids;
  tokenizer.Encode(text, &ids);
  if (request.value("max_tokens", json()).is_null())
    request["max_tokens"] = std::max<int64_t>(limits.max_length - std::ssize(ids), 0);
  request["prompt"] = ids;
  return Reader(request, tokenizer, limits).Read();
}

std::string ChatJson(const CompletionAnswer& answer) {
  json choices = json::array();
  int64_t new_tokens = 0;
  for (size_t i = 0; i < answer.choices.size(); ++i) {
    const Choice& choice = answer.choices[i];
    choices.push_back({{"index", i},
                       {"message", {{"role", "assistant"}, {"content", choice.text}}},
                       {"logprobs", nullptr},
                       {"finish_reason", choice.finish}});
    new_tokens += std::ssize(choice.ids) - choice.prompt_tokens;
  }
  const int64_t prompt_tokens = answer.choices.front().prompt_tokens;
  return Line({{"id", answer.id},
               {"object", "chat.completion"},
               {"created", answer.created_unix},
               {"model", answer.model},
               {"choices", std::move(choices)},
               {"usage",
                {{"prompt_tokens", prompt_tokens},
                 {"completion_tokens", new_tokens},
                 {"total_tokens", prompt_tokens + new_tokens}}}});
}

std::string CompletionErrorJson(std::string_view message, std::string_view type) {
  return Line({{"error", {{"message", message}, {"type", type}}}});
}

}  // namespace terrace
