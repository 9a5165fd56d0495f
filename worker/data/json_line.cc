// SPDX-License-Identifier: Apache-2.0
#include "worker/data/json_line.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

// The JSON library quotes what it read of a bad line, which may be all of a long one.
constexpr size_t kQuotedBytesMax = 400;
constexpr char kForms[] =
    "; each line must be an object such as {\"text\": \"...\"}, {\"prompt\": \"...\", "
    "\"completion\": \"...\"}, {\"instruction\": \"...\", \"output\": \"...\"} or {\"messages\": "
    "[{\"role\": \"...\", \"content\": \"...\"}]}";

bool IsOfNumber(char c) { return absl::ascii_isalnum(c) || c == '+' || c == '-' || c == '.'; }

// Words that Python's json writes and reads as numbers, and numbers that no double holds.
bool IsNotFinite(std::string_view word) {
  if (word == "NaN" || word == "Infinity" || word == "-Infinity") return true;
  double number = 0;
  return word.find_first_of("0123456789") != std::string_view::npos &&
         absl::SimpleAtod(Absl(word), &number) && std::isinf(number);
}

// With null for numbers that are not finite, wherever they stand but in strings.
std::string WithoutNotFinite(std::string_view line) {
  std::string cleaned;
  bool in_string = false;
  for (size_t i = 0; i < line.size();) {
    if (!in_string && IsOfNumber(line[i])) {
      const size_t begin = i;
      while (i < line.size() && IsOfNumber(line[i])) ++i;
      const std::string_view word = line.substr(begin, i - begin);
      cleaned.append(IsNotFinite(word) ? "null" : word);
      continue;
    }
    if (line[i] == '"') in_string = !in_string;
    if (in_string && line[i] == '\\' && i + 1 < line.size()) cleaned.push_back(line[i++]);
    cleaned.push_back(line[i++]);
  }
  return cleaned;
}

// As Python reads it: other fields than the text may hold NaN.
Json ParseLine(std::string_view line) {
  try {
    return Json::parse(line);
  } catch (const Json::exception&) {
    const std::string cleaned = WithoutNotFinite(line);
    Json object = Json::parse(cleaned, nullptr, /*allow_exceptions=*/false);
    if (cleaned == line || object.is_discarded()) throw;
    return object;
  }
}

absl::StatusOr<std::string> Field(const Json& object, const char* name) {
  const auto field = object.find(name);
  if (field == object.end())
    return absl::InvalidArgumentError(absl::StrCat("no field \"", name, "\"", kForms));
  if (!field->is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", name, "\" is ", field->type_name(), ", must be a string", kForms));
  }
  return field->get<std::string>();
}

LineText Answered(std::string prompt, std::string_view answer) {
  const size_t begin = prompt.size();
  LineText line = {.text = std::move(prompt)};
  line.text.append(answer);
  line.counted = {{begin, line.text.size()}};
  return line;
}

std::string AlpacaPrompt(std::string_view instruction, std::string_view input) {
  std::string prompt = "Below is an instruction that describes a task";
  absl::StrAppend(&prompt,
                  input.empty() ? ". " : ", paired with an input that provides further context. ",
                  "Write a response that appropriately completes the request.\n\n### "
                  "Instruction:\n",
                  Absl(instruction));
  if (!input.empty()) absl::StrAppend(&prompt, "\n\n### Input:\n", Absl(input));
  absl::StrAppend(&prompt, "\n\n### Response:");
  return prompt;
}

absl::StatusOr<LineText> Read(const Json& object) {
  if (!object.is_object())
    return absl::InvalidArgumentError(absl::StrCat("not a JSON object", kForms));
  const auto has = [&object](const char* name) {
    return object.contains(name) && !object[name].is_null();
  };
  const bool is_chat = has("messages") || has("conversations");
  // Files that have the text of an instruction as well have it for those who read no instructions.
  const bool has_pair = (object.contains("prompt") && object.contains("completion")) ||
                        (object.contains("instruction") && object.contains("output"));
  if (is_chat && !has_pair) return LineText{.is_chat = true};
  if (object.contains("prompt") && object.contains("completion")) {
    const bool prompts = object["prompt"].is_array(), completes = object["completion"].is_array();
    if (prompts && completes) return LineText{.is_chat = true};
    if (prompts || completes) {
      const char* one = prompts ? "prompt" : "completion";
      const char* other = prompts ? "completion" : "prompt";
      return absl::InvalidArgumentError(absl::StrCat("\"", one, "\" is a list, but \"", other,
                                                     "\" is ", object[other].type_name(),
                                                     "; both must be texts, or both messages"));
    }
  }
  if (object.contains("text") && !has_pair) {
    ASSIGN_OR_RETURN(std::string text, Field(object, "text"));
    return LineText{.text = std::move(text)};
  }
  if (has("chosen") && has("rejected") && !has_pair) {
    return absl::InvalidArgumentError(
        "a pair of answers, \"chosen\" and \"rejected\", is trained on with train.preference; add "
        "that, or give the line a \"completion\"");
  }
  if (object.contains("prompt")) {
    ASSIGN_OR_RETURN(std::string prompt, Field(object, "prompt"));
    ASSIGN_OR_RETURN(const std::string completion, Field(object, "completion"));
    return Answered(std::move(prompt), completion);
  }
  if (object.contains("instruction")) {
    ASSIGN_OR_RETURN(const std::string instruction, Field(object, "instruction"));
    std::string input;
    if (object.contains("input") && !object["input"].is_null()) {
      ASSIGN_OR_RETURN(input, Field(object, "input"));
    }
    ASSIGN_OR_RETURN(const std::string output, Field(object, "output"));
    return Answered(AlpacaPrompt(instruction, input), output);
  }
  return absl::InvalidArgumentError(absl::StrCat("no field \"text\"", kForms));
}

// ---- pairs of answers ---------------------------------------------------------------------------

constexpr char kPairForms[] =
    "; with train.preference each line must be an object such as {\"prompt\": \"...\", \"chosen\": "
    "\"...\", \"rejected\": \"...\"}, whose values are texts or lists of messages";

absl::Status BadPair(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(what, kPairForms));
}

// Characters, or messages, that both begin with and that leave each something; of texts in bytes,
// and without a space at their end, which belongs to the answers (extract_prompt in TRL).
size_t CommonBeginning(const std::string& a, const std::string& b) {
  const auto is_inside = [&a](size_t i) {
    return (static_cast<unsigned char>(a[i]) & 0xc0) == 0x80;
  };
  const size_t least = std::min(a.size(), b.size());
  size_t same = 0;
  while (same < least && a[same] == b[same]) ++same;
  const bool differ = same < least;
  if (!differ && same > 0) --same;
  while (same > 0 && is_inside(same)) --same;
  return differ && same > 0 && a[same - 1] == ' ' ? same - 1 : same;
}
size_t CommonBeginning(const Json& a, const Json& b) {
  const size_t least = std::min(a.size(), b.size());
  size_t same = 0;
  while (same < least && a[same] == b[same]) ++same;
  return same < least || same == 0 ? same : same - 1;
}

LineText ChatAnswer(const Json& object, Json prompt, const Json& answer) {
  Json line = object;
  line.erase("chosen");
  line.erase("rejected");
  line["prompt"] = std::move(prompt);
  line["completion"] = answer;
  return {.text = line.dump(-1, ' ', false, Json::error_handler_t::replace), .is_chat = true};
}

absl::StatusOr<LinePair> PairOfMessages(const Json& object, bool has_prompt) {
  const Json& chosen = object["chosen"];
  const Json& rejected = object["rejected"];
  if (has_prompt) {
    return LinePair{ChatAnswer(object, object["prompt"], chosen),
                    ChatAnswer(object, object["prompt"], rejected)};
  }
  const auto same = static_cast<Json::difference_type>(CommonBeginning(chosen, rejected));
  if (same == 0)
    return BadPair(
        "\"chosen\" and \"rejected\" begin with different messages, so there is no prompt");
  const auto rest = [same](const Json& of) {
    return Json(Json::array_t(of.begin() + same, of.end()));
  };
  const Json prompt = Json::array_t(chosen.begin(), chosen.begin() + same);
  return LinePair{ChatAnswer(object, prompt, rest(chosen)),
                  ChatAnswer(object, prompt, rest(rejected))};
}

absl::StatusOr<LinePair> ReadPair(const Json& object) {
  if (!object.is_object()) return BadPair("not a JSON object");
  for (const char* name : {"chosen", "rejected"}) {
    if (!object.contains(name)) return BadPair(absl::StrCat("no field \"", name, "\""));
    if (object[name].is_string() || object[name].is_array()) continue;
    return BadPair(absl::StrCat("\"", name, "\" is ", object[name].type_name()));
  }
  const bool is_chat = object["chosen"].is_array();
  if (object["rejected"].is_array() != is_chat)
    return BadPair("one of \"chosen\" and \"rejected\" is a text, the other a list");
  // A prompt as text beside conversations says what these begin with.
  const bool has_prompt = object.contains("prompt") && !object["prompt"].is_null() &&
                          object["prompt"].is_array() == is_chat;
  if (is_chat) return PairOfMessages(object, has_prompt);
  const auto chosen = object["chosen"].get<std::string>();
  const auto rejected = object["rejected"].get<std::string>();
  if (!has_prompt) {
    if (object.contains("prompt") && object["prompt"].is_array())
      return BadPair("\"prompt\" is a list, but \"chosen\" is a text");
    const size_t same = CommonBeginning(chosen, rejected);
    const std::string prompt = chosen.substr(0, same);
    return LinePair{Answered(prompt, std::string_view(chosen).substr(same)),
                    Answered(prompt, std::string_view(rejected).substr(same))};
  }
  if (!object["prompt"].is_string())
    return BadPair(absl::StrCat("\"prompt\" is ", object["prompt"].type_name()));
  const auto prompt = object["prompt"].get<std::string>();
  return LinePair{Answered(prompt, chosen), Answered(prompt, rejected)};
}

// The caller knows the line of the file: "[json.exception.parse_error.101] parse error at line 1, "
// goes, the column stays.
std::string SentenceOf(const Json::exception& error) {
  constexpr std::string_view kLine = "parse error at line 1, ";
  std::string_view what = error.what();
  if (const size_t end = what.find("] "); end != std::string_view::npos)
    what.remove_prefix(end + 2);
  if (what.starts_with(kLine)) what.remove_prefix(kLine.size());
  return CleanLine(what, kQuotedBytesMax);
}

}  // namespace

absl::StatusOr<LineText> TextOfJsonLine(std::string_view line) {
  try {
    return Read(ParseLine(line));
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(SentenceOf(error), kForms));
  }
}

absl::StatusOr<LinePair> PairOfJsonLine(std::string_view line) {
  try {
    return ReadPair(ParseLine(line));
  } catch (const Json::exception& error) {
    return BadPair(SentenceOf(error));
  }
}

}  // namespace terrace
