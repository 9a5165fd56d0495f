// SPDX-License-Identifier: Apache-2.0
#include "coordinator/queue/fair_share.h"

#include <algorithm>
#include <cmath>

namespace terrace {

double DecayedSeconds(const Usage& usage, int64_t unix_ms, int64_t half_life_seconds) {
  if (half_life_seconds == 0) return usage.device_seconds;
  const double passed = static_cast<double>(std::max<int64_t>(0, unix_ms - usage.unix_ms)) / 1000;
  return usage.device_seconds * std::exp2(-passed / static_cast<double>(half_life_seconds));
}

Usage WithUse(const Usage& usage, double device_seconds, int64_t unix_ms,
              int64_t half_life_seconds) {
  return {DecayedSeconds(usage, unix_ms, half_life_seconds) + device_seconds, unix_ms};
}

double FairShareFactor(double usage, double total, size_t owners) {
  if (total <= 0 || owners < 2) return 1;
  const double due = total / static_cast<double>(owners);
  return std::exp2(-usage / due);
}

double QueuePriority(int32_t asked, int64_t waited_ms, double fair_share_factor,
                     const QueueOptions& options) {
  const double age = options.priority_age_seconds == 0
                         ? 0
                         : static_cast<double>(waited_ms) / 1000 /
                               static_cast<double>(options.priority_age_seconds);
  const double share = options.fair_share_half_life_seconds == 0 ? 0 : fair_share_factor;
  return asked + age + share;
}

}  // namespace terrace
