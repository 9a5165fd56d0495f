// SPDX-License-Identifier: Apache-2.0
#include "proto/caching/statistics.h"

#include <algorithm>

namespace terrace {
namespace {

double Missing(int64_t part, int64_t whole) {
  return whole == 0 ? 0 : 1 - static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

void CachingStatistics::Allocate(int64_t block_bytes, int64_t requested) {
  allocated_bytes += block_bytes;
  active_bytes += block_bytes;
  requested_bytes += requested;
  step_peak_bytes = std::max(step_peak_bytes, allocated_bytes);
}

void CachingStatistics::Retire(int64_t block_bytes, int64_t requested) {
  allocated_bytes -= block_bytes;
  requested_bytes -= requested;
}

double CachingStatistics::UnallocatedShare() const {
  return Missing(allocated_bytes, reserved_bytes);
}

double CachingStatistics::ScatteredShare() const {
  return Missing(largest_free_block_bytes, free_bytes());
}

}  // namespace terrace
