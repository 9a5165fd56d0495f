// SPDX-License-Identifier: Apache-2.0
#include "base/metric.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/utf8.h"

namespace terrace {
namespace {

const char* TypeName(MetricKind kind) {
  switch (kind) {
    case MetricKind::kCounter:
      return "counter";
    case MetricKind::kHistogram:
      return "histogram";
    default:
      return "gauge";
  }
}

constexpr size_t kLabelBytesMax = 256;

}  // namespace

std::string LabelValue(std::string_view text) { return CleanLine(text, kLabelBytesMax); }

std::string MetricTableMarkdown(absl::Span<const Metric> metrics) {
  std::string text = "| name | type | unit | labels | meaning |\n|---|---|---|---|---|\n";
  for (const Metric& metric : metrics) {
    absl::StrAppend(&text, "| `", metric.name, "` | ", TypeName(metric.kind), " | ", metric.unit,
                    " | ", metric.labels, " | ", metric.help, " |\n");
  }
  return text;
}

std::string MetricTableJson(absl::Span<const Metric> metrics) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const Metric& metric : metrics) {
    nlohmann::ordered_json labels = nlohmann::ordered_json::array();
    for (absl::string_view label : absl::StrSplit(metric.labels, ", ", absl::SkipEmpty())) {
      labels.push_back(std::string(label));
    }
    rows.push_back({{"name", metric.name},
                    {"type", TypeName(metric.kind)},
                    {"unit", metric.unit},
                    {"labels", labels},
                    {"help", metric.help}});
  }
  return nlohmann::ordered_json{{"metrics", rows}}.dump(2) + "\n";
}

}  // namespace terrace
