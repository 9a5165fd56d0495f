// SPDX-License-Identifier: Apache-2.0
#include "worker/tools/completion_request.h"

#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <type_traits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "nlohmann/json.hpp"
#include "worker/tools/growing_texts.h"

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
                                             {"best_of", 1},
                                             {"suffix", ""}};
  return keys;
}

class Reader {
 public:
  Reader(const json& request, const Tokenizer& tokenizer, const CompletionLimits& limits)
      : request_(request), tokenizer_(tokenizer), limits_(limits) {}

  absl::StatusOr<CompletionRequest> Read() {
    RETURN_IF_ERROR(ReadPrompts());
    RETURN_IF_ERROR(ReadNumbers());
    RETURN_IF_ERROR(ReadSwitches());
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
    constexpr double kPenaltyMax = 2;
    RETURN_IF_ERROR(Read("presence_penalty", -kPenaltyMax, kPenaltyMax, &sampler.presence_penalty));
    RETURN_IF_ERROR(
        Read("frequency_penalty", -kPenaltyMax, kPenaltyMax, &sampler.frequency_penalty));
    RETURN_IF_ERROR(ReadBias());
    RETURN_IF_ERROR(Read("seed", std::numeric_limits<int32_t>::min(), kAny * kAny, &seed));
    RETURN_IF_ERROR(Read("logprobs", 0, kLogprobsMax, &logprobs));
    sampler.seed = static_cast<uint64_t>(seed);
    if (logprobs >= 0) read_.logprobs = logprobs;
    return absl::OkStatus();
  }

  // {"token": what its logit gains}
  absl::Status ReadBias() {
    constexpr double kBiasMax = 100;
    const json* biases = Find("logit_bias");
    if (biases == nullptr) return absl::OkStatus();
    if (!biases->is_object()) return Refuse("logit_bias", *biases, "be an object of tokens");
    for (const auto& [token, bias] : biases->items()) {
      int64_t id = -1;
      if (!absl::SimpleAtoi(token, &id) || id < 0 || id >= limits_.vocabulary)
        return Refuse("logit_bias", token, absl::StrCat("name tokens below ", limits_.vocabulary));
      if (!bias.is_number() || std::abs(bias.get<double>()) > kBiasMax)
        return Refuse("logit_bias", bias, "give a number from -100 to 100");
      read_.each.sampler.logit_bias.emplace_back(static_cast<int32_t>(id), bias.get<double>());
    }
    return absl::OkStatus();
  }

  absl::Status ReadSwitches() {
    RETURN_IF_ERROR(ReadSwitch("echo", &read_.echo));
    RETURN_IF_ERROR(ReadSwitch("stream", &read_.stream));
    if (read_.stream && read_.echo) return Refuse("echo", true, "be false with stream");
    const json* options = Find("stream_options");
    if (options == nullptr) return absl::OkStatus();
    if (!read_.stream || !options->is_object())
      return Refuse("stream_options", *options, "be an object, and stand beside stream: true");
    for (const auto& [key, value] : options->items()) {
      if (key != "include_usage" || !value.is_boolean())
        return Refuse("stream_options", *options, "have include_usage alone: true or false");
      read_.usage = value.get<bool>();
    }
    return absl::OkStatus();
  }

  absl::Status ReadSwitch(const char* key, bool* on) {
    const json* value = Find(key);
    if (value == nullptr) return absl::OkStatus();
    if (!value->is_boolean()) return Refuse(key, *value, "be true or false");
    *on = value->get<bool>();
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

// A chat says whether log probabilities are wanted and how many of the likeliest tokens in two
// keys; afterwards `logprobs` says both.
absl::Status ReadChatLogprobs(json* request) {
  const json wanted = request->value("logprobs", json()),
             top = request->value("top_logprobs", json());
  if (!wanted.is_null() && !wanted.is_boolean())
    return Refuse("logprobs", wanted, "be true or false in a chat");
  request->erase("logprobs");
  request->erase("top_logprobs");
  const bool on = wanted == true;
  if (!top.is_null() && !on) return Refuse("top_logprobs", top, "stand beside logprobs: true");
  if (!top.is_null() && (!top.is_number_integer() || top < 0 || top > kLogprobsMax)) {
    return Refuse("top_logprobs", top, absl::StrCat("be a whole number from 0 to ", kLogprobsMax));
  }
  if (on) (*request)["logprobs"] = top.is_null() ? json(0) : top;
  return absl::OkStatus();
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
  RETURN_IF_ERROR(ReadChatLogprobs(&request));
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

}  // namespace terrace
