// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/megatron/line.h"

#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "coordinator/import/script_words.h"

namespace terrace {
namespace {

constexpr size_t kWordsMax = 4000, kShownBytes = 80;
constexpr int64_t kNumberMax = 1'000'000'000;

absl::Status Bad(const std::string& name, const std::string& value, const std::string& must) {
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, ": got '", CleanLine(value, kShownBytes), "', must be ", must));
}

}  // namespace

std::string MegatronWords::value() const { return absl::StrJoin(values, " "); }

// Values may be negative nowhere, so two dashes begin a flag.
absl::StatusOr<MegatronLine> MegatronLine::Parse(std::string_view text) {
  ASSIGN_OR_RETURN(const auto commands, ScriptWords(text));
  MegatronLine line;
  size_t count = 0;
  for (const std::vector<std::string>& command : commands) {
    bool has_flag = false;
    count += command.size();
    for (const std::string& word : command) {
      if (word.starts_with("--")) {
        const size_t equals = word.find('=');
        line.flags_.push_back(
            {.name = word.substr(2, equals == std::string::npos ? equals : equals - 2)});
        if (equals != std::string::npos)
          line.flags_.back().values.push_back(word.substr(equals + 1));
        has_flag = true;
      } else if (has_flag && !word.ends_with(".py")) {  // the script they are for
        line.flags_.back().values.push_back(word);
      }
    }
  }
  if (line.flags_.empty() || count > kWordsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "got ", line.flags_.empty() ? "no" : "too many", " flags, must be 1 to ", kWordsMax,
        " words such as '--tensor-model-parallel-size 8 --micro-batch-size 1'"));
  }
  for (size_t i = 0; i < line.flags_.size(); ++i) line.by_name_[line.flags_[i].name] = i;
  // The other name of the length, which Megatron-LM takes in place of it.
  const auto other = line.by_name_.find("encoder-seq-length");
  if (other != line.by_name_.end()) line.by_name_.emplace("seq-length", other->second);
  return line;
}

std::string MegatronLine::Value(const std::string& name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? "" : flags_[it->second].value();
}

absl::StatusOr<int64_t> MegatronLine::Number(const std::string& name, int64_t fallback) const {
  if (!Given(name)) return fallback;
  int64_t number = 0;
  const std::string value = Value(name);
  if (absl::SimpleAtoi(value, &number) && number >= 0 && number <= kNumberMax) return number;
  return Bad(name, value, absl::StrCat("a whole number from 0 to ", kNumberMax));
}

absl::StatusOr<double> MegatronLine::Real(const std::string& name, double fallback) const {
  if (!Given(name)) return fallback;
  double number = 0;
  const std::string value = Value(name);
  if (absl::SimpleAtod(value, &number) && std::isfinite(number)) return number;
  return Bad(name, value, "a number");
}

}  // namespace terrace
