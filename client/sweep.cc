// SPDX-License-Identifier: Apache-2.0
#include "client/sweep.h"

#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/utf8.h"

namespace terrace {
namespace {

constexpr size_t kQuotedBytesMax = 200;  // of what the user wrote, in a message

struct Axis {
  std::string key;
  std::vector<std::string> values;
};

absl::Status Wrong(const std::string& text, const std::string& must) {
  return absl::InvalidArgumentError(
      absl::StrCat("--sweep: got ", CleanLine(text, kQuotedBytesMax), ", must be ", must));
}

// At commas outside brackets and quotes.
std::vector<std::string> SplitValues(const std::string& text) {
  std::vector<std::string> values(1);
  int depth = 0;
  char quote = 0;
  for (const char c : text) {
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '[' || c == '{') {
      ++depth;
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == ',' && depth == 0) {
      values.emplace_back();
      continue;
    }
    values.back() += c;
  }
  for (std::string& value : values) absl::StripAsciiWhitespace(&value);
  return values;
}

absl::StatusOr<Axis> AxisOf(const std::string& text) {
  const size_t equals = text.find('=');
  const std::string form = "a key of the spec and its values, such as train.optimizer.lr=1e-4,3e-4";
  if (equals == std::string::npos || equals == 0) return Wrong(text, form);
  Axis axis{.key = text.substr(0, equals), .values = SplitValues(text.substr(equals + 1))};
  std::set<std::string> seen;
  for (const std::string& value : axis.values) {
    if (value.empty()) return Wrong(text, form);
    if (!seen.insert(value).second)
      return Wrong(text, absl::StrCat("values that differ; ", value, " comes twice"));
  }
  return axis;
}

}  // namespace

absl::StatusOr<std::vector<v1::ArrayMember>> SweepOf(const std::vector<std::string>& sweeps,
                                                     uint32_t running_max) {
  std::vector<v1::ArrayMember> members(1);
  std::set<std::string> keys;
  for (const std::string& text : sweeps) {
    ASSIGN_OR_RETURN(const Axis axis, AxisOf(text));
    if (!keys.insert(axis.key).second)
      return Wrong(text, absl::StrCat("a key that is given once; write all values of ", axis.key,
                                      " behind one --sweep"));
    if (members.size() * axis.values.size() > kSweepJobsMax)
      return Wrong(text, absl::StrCat("fewer values; all combinations would be more than ",
                                      kSweepJobsMax, " jobs"));
    std::vector<v1::ArrayMember> more;
    for (const v1::ArrayMember& member : members) {
      for (const std::string& value : axis.values) {
        v1::ArrayMember::Value& added = *more.emplace_back(member).add_values();
        added.set_key(axis.key);
        added.set_value(value);
      }
    }
    members = std::move(more);
  }
  for (size_t i = 0; i < members.size(); ++i) {
    members[i].set_index(static_cast<uint32_t>(i));
    members[i].set_size(static_cast<uint32_t>(members.size()));
    members[i].set_running_max(running_max);
  }
  return members;
}

std::string ValuesText(const v1::ArrayMember& member) {
  return absl::StrJoin(member.values(), ", ",
                       [](std::string* out, const v1::ArrayMember::Value& value) {
                         absl::StrAppend(out, value.key(), "=", value.value());
                       });
}

}  // namespace terrace
