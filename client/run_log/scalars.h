// The numbers of a job's events that its logs keep, under the names that people plot.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "proto/v1/job.pb.h"

namespace terrace {

// In the order of a table's columns.
std::span<const std::string_view> ScalarNames();

struct Scalar {
  std::string_view name;  // of ScalarNames()
  double value = 0;
};
struct Point {
  int64_t step = 0;
  std::vector<Scalar> scalars;  // empty: the event has none
};
Point PointOf(const v1::JobEvent& event);

}  // namespace terrace
