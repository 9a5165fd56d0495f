// SPDX-License-Identifier: Apache-2.0
#include "base/text/json_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

constexpr size_t kRepeatedMax = 20;
constexpr size_t kSentenceBytesMax = 200;

std::string PlaceOf(std::string_view text, size_t position) {
  const std::string_view before = text.substr(0, std::min(position, text.size()));
  const size_t line_begin = before.rfind('\n') + 1;  // npos + 1 is 0
  return absl::StrCat("line ", std::count(before.begin(), before.end(), '\n') + 1, ", column ",
                      std::max<size_t>(1, before.size() - line_begin));
}

// Without the library's names: "[json.exception.parse_error.101] parse error at line 1, column 2: "
std::string SentenceOf(std::string_view what) {
  if (const size_t end = what.find("] "); end != std::string_view::npos) {
    what.remove_prefix(end + 2);
  }
  if (what.starts_with("parse error at line")) {
    if (const size_t end = what.find(": "); end != std::string_view::npos)
      what.remove_prefix(end + 2);
  }
  return CleanLine(what, kSentenceBytesMax);
}

class Watcher final : public nlohmann::json_sax<Json> {
 public:
  Watcher(std::string_view text, std::vector<std::string>* repeated)
      : text_(text), repeated_(repeated) {}

  const absl::Status& status() const { return status_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return Open(); }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t) override { return Open(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    Level& level = levels_.back();
    level.key = name;
    const bool is_new = level.keys.insert(name).second;
    if (is_new || repeated_ == nullptr || repeated_->size() >= kRepeatedMax) return true;
    std::string path;
    for (const Level& outer : levels_) {
      if (!outer.key.empty()) absl::StrAppend(&path, path.empty() ? "" : ".", outer.key);
    }
    path = CleanLine(path, kSentenceBytesMax);
    if (std::find(repeated_->begin(), repeated_->end(), path) == repeated_->end())
      repeated_->push_back(std::move(path));
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    status_ = absl::InvalidArgumentError(
        absl::StrCat(PlaceOf(text_, position), ": ", SentenceOf(error.what())));
    return false;
  }

 private:
  struct Level {
    std::string key;  // the one whose value is read
    std::set<std::string> keys;
  };

  bool Open() {
    levels_.emplace_back();
    if (levels_.size() <= size_t{kJsonDepthMax}) return true;
    status_ =
        absl::InvalidArgumentError(absl::StrCat("it is nested more than ", kJsonDepthMax, " deep"));
    return false;
  }
  bool Close() {
    levels_.pop_back();
    return true;
  }

  const std::string_view text_;
  std::vector<std::string>* const repeated_;
  std::vector<Level> levels_;
  absl::Status status_;
};

}  // namespace

absl::Status CheckJson(std::string_view text, std::vector<std::string>* repeated) {
  Watcher watcher(text, repeated);
  const bool whole = Json::sax_parse(text, &watcher);
  if (!watcher.status().ok() || whole) return watcher.status();
  return absl::InvalidArgumentError("it is not JSON");
}

}  // namespace terrace
