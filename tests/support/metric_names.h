// The conventions of Prometheus for names of metrics, and whether a text has only what a table
// says.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/metric.h"

namespace terrace {

// Empty, or a sentence.
inline std::string WhyBadName(const Metric& metric) {
  const absl::string_view name = metric.name;
  if (!absl::StartsWith(name, "terrace_")) return absl::StrCat(name, " lacks the prefix terrace_");
  const bool total = absl::EndsWith(name, "_total");
  if (total != (metric.kind == MetricKind::kCounter))
    return absl::StrCat(name, ": counters end in _total, and nothing else does");
  const absl::string_view stem = absl::StripSuffix(name, "_total");
  for (absl::string_view unit : {"seconds", "bytes", "ratio", "joules"}) {
    if (absl::EndsWith(stem, absl::StrCat("_", unit)) != (metric.unit == unit) &&
        !absl::EndsWith(stem, absl::StrCat("_per_", unit)))
      return absl::StrCat(name, " and its unit ", metric.unit, " do not fit");
  }
  for (absl::string_view scaled : {"_ms", "_milliseconds", "_kib", "_mib", "_gib", "_percent"}) {
    if (absl::StrContains(stem, scaled)) return absl::StrCat(name, " is in no base unit");
  }
  if (!absl::EndsWith(metric.help, ".")) return absl::StrCat(name, ": its help is no sentence");
  return "";
}

// Names of families ("# TYPE name type") that the table lacks or has with another type.
inline std::vector<std::string> FamiliesNotIn(std::string_view text,
                                              const std::vector<Metric>& table) {
  static constexpr const char* kTypes[] = {"gauge", "counter", "histogram"};
  std::vector<std::string> missing;
  for (absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (words.size() != 4 || words[1] != "TYPE") continue;
    const bool known = std::any_of(table.begin(), table.end(), [&words](const Metric& metric) {
      return words[2] == metric.name && words[3] == kTypes[static_cast<int>(metric.kind)];
    });
    if (!known) missing.push_back(words[2]);
  }
  return missing;
}

}  // namespace terrace
