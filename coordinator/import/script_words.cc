// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/script_words.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/status_macros.h"
#include "coordinator/import/shell_words.h"

namespace terrace {
namespace {

constexpr int kDepthMax = 4;  // of texts within texts
constexpr size_t kValueBytesMax = 4096;

bool IsNameCharacter(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

size_t NameLength(std::string_view text) {
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text[0]))) return 0;
  return std::find_if_not(text.begin(), text.end(), &IsNameCharacter) - text.begin();
}

// Such a word ends a command and begins another, or redirects its output.
bool EndsCommand(std::string_view word) {
  constexpr std::string_view kEnds[] = {"|", "||", "&", "&&", ";"};
  return std::find(std::begin(kEnds), std::end(kEnds), word) != std::end(kEnds) ||
         word.starts_with('>') || word.starts_with("2>") || word.starts_with("&>");
}

struct Assignment {
  std::string name, value;
};

// "NAME=value", "NAME+=value"
std::optional<Assignment> AssignmentOf(std::string_view word) {
  const size_t length = NameLength(word);
  if (length == 0) return std::nullopt;
  std::string_view rest = word.substr(length);
  if (rest.starts_with('+')) rest.remove_prefix(1);
  if (!rest.starts_with('=')) return std::nullopt;
  return Assignment{std::string(word.substr(0, length)), std::string(rest.substr(1))};
}

class Script {
 public:
  absl::Status Read(std::string_view text, int depth) {
    ASSIGN_OR_RETURN(const std::vector<std::string> words, ShellWords(text));
    for (const std::string& word : words) RETURN_IF_ERROR(Add(word, depth));
    return absl::OkStatus();
  }

  std::vector<std::vector<std::string>> commands;

 private:
  absl::Status Add(const std::string& written, int depth) {
    if (IsListOfFlags(written)) return absl::OkStatus();  // its words stand where it is set
    std::string word = Expanded(written);
    if (!word.starts_with("--")) {
      if (EndsCommand(word)) {
        End();
        return absl::OkStatus();
      }
      std::optional<Assignment> assignment = AssignmentOf(word);
      if (assignment && assignment->value.starts_with('(')) {
        End();
        lists_.insert(assignment->name);
        in_array_ = true;
        word = assignment->value.substr(1);
        if (word.empty()) return absl::OkStatus();
      } else if (assignment && depth < kDepthMax &&
                 assignment->value.find("--") != std::string::npos) {
        End();
        lists_.insert(assignment->name);
        RETURN_IF_ERROR(Read(assignment->value, depth + 1));
        End();
        return absl::OkStatus();
      } else if (assignment && !has_flag_) {
        variables_[assignment->name] = assignment->value.substr(0, kValueBytesMax);
        return absl::OkStatus();
      }
    }
    const bool closes = in_array_ && word.ends_with(')');
    if (closes) word.pop_back();
    if (!word.empty() || !closes) {
      if (commands.empty()) commands.emplace_back();
      has_flag_ |= word.starts_with("--");
      commands.back().push_back(std::move(word));
    }
    if (closes) {
      in_array_ = false;
      End();
    }
    return absl::OkStatus();
  }

  void End() {
    if (commands.empty() || !commands.back().empty()) commands.emplace_back();
    has_flag_ = false;
  }

  // "${NAME[@]}" of any array, "$NAME" of a text with flags.
  bool IsListOfFlags(std::string_view word) const {
    if (!word.starts_with('$')) return false;
    if (word == "$@" || word == "$*") return true;
    word.remove_prefix(1);
    const bool braces = word.starts_with('{');
    if (braces) word.remove_prefix(1);
    const size_t length = NameLength(word);
    const std::string_view rest = word.substr(length);
    if (braces && (rest == "[@]}" || rest == "[*]}")) return true;
    return length > 0 && rest == (braces ? "}" : "") &&
           lists_.contains(std::string(word.substr(0, length)));
  }

  // With the variables that were set before.
  std::string Expanded(std::string_view word) const {
    std::string out;
    while (!word.empty()) {
      const size_t dollar = std::min(word.find('$'), word.size());
      out += word.substr(0, dollar);
      word.remove_prefix(dollar);
      if (word.empty()) break;
      const bool braces = word.substr(1).starts_with('{');
      const std::string_view inner = word.substr(braces ? 2 : 1);
      const size_t length = NameLength(inner);
      const auto known = variables_.find(std::string(inner.substr(0, length)));
      const std::string_view rest = inner.substr(length);
      const size_t close = rest.find('}');
      const bool otherwise = braces && rest.starts_with(":-") && close != std::string_view::npos;
      const bool whole = length > 0 && (!braces || otherwise || rest.starts_with('}'));
      if (!whole || (known == variables_.end() && !otherwise)) {
        out += word.front();
        word.remove_prefix(1);
        continue;
      }
      out +=
          known != variables_.end() ? std::string_view(known->second) : rest.substr(2, close - 2);
      word = braces ? rest.substr(close + 1) : rest;
      if (out.size() > kValueBytesMax) break;
    }
    return out;
  }

  std::map<std::string, std::string> variables_;
  std::set<std::string> lists_;  // names of arrays and of texts with flags
  bool in_array_ = false;
  bool has_flag_ = false;  // the last command has one
};

}  // namespace

absl::StatusOr<std::vector<std::vector<std::string>>> ScriptWords(std::string_view text) {
  Script script;
  RETURN_IF_ERROR(script.Read(text, 0));
  return std::move(script.commands);
}

}  // namespace terrace
