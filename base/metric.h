// The name and the meaning of one series of /metrics: one row of a process's table of metrics.
// The process registers its series from the table, and docs/metrics.md is printed from it, so that
// neither can say something that the other does not know.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "absl/types/span.h"

namespace terrace {

enum class MetricKind { kGauge, kCounter, kHistogram };

struct Metric {
  const char* name;  // by the conventions of Prometheus: base unit last, counters end in _total
  MetricKind kind;
  const char* unit;    // "seconds", "bytes", "ratio", ...; empty: a count, or a number without one
  const char* labels;  // "job, rank"; empty: none
  const char* help;    // one sentence
};

// `text` as the value of a label, whoever named it: Prometheus refuses a whole scrape for one byte
// that is not UTF-8.
std::string LabelValue(std::string_view text);

// Rows of a Markdown table, with its head.
std::string MetricTableMarkdown(absl::Span<const Metric> metrics);
// {"metrics": [{"name": ..., "type": ..., "unit": ..., "labels": [...], "help": ...}]}
std::string MetricTableJson(absl::Span<const Metric> metrics);

}  // namespace terrace
