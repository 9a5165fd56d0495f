// The series that /metrics has of each job: names and meaning, and how each is read off what the
// control loop knows.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/metric.h"
#include "coordinator/jobs/control_stats.h"

namespace terrace {

struct JobSample {
  double value = 0;
  std::string label;  // of JobSeries.label
};
struct JobSeries {
  Metric metric;
  const char* label;                                   // beside "job"; null: none
  std::vector<JobSample> (*samples)(const JobStats&);  // none: it does not apply to the job
};

absl::Span<const JobSeries> AllJobSeries();

}  // namespace terrace
