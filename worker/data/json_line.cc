// SPDX-License-Identifier: Apache-2.0
#include "worker/data/json_line.h"

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

}  // namespace

absl::StatusOr<LineText> TextOfJsonLine(std::string_view line) {
  try {
    return Read(ParseLine(line));
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(CleanLine(error.what(), kQuotedBytesMax), kForms));
  }
}

}  // namespace terrace
