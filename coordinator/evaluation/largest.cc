// SPDX-License-Identifier: Apache-2.0
#include "coordinator/evaluation/largest.h"

#include <algorithm>

namespace terrace {

Largest LargestThatFits(const Steps& steps,
                        const std::function<std::optional<Fit>(int64_t value)>& fits) {
  const int64_t count = (steps.most + steps.step - 1) / steps.step;  // of values, 1 to this
  const auto value_of = [&](int64_t index) { return std::min(index * steps.step, steps.most); };
  int64_t low = 0, high = count + 1;  // low fits, high does not
  std::string reason;
  int64_t next = std::clamp<int64_t>(steps.first / steps.step, 1, count);
  while (low + 1 < high) {
    const std::optional<Fit> fit = fits(value_of(next));
    if (!fit) return {.value = value_of(low), .refused = 0, .reason = "", .ended = true};
    if (fit->fits) {
      low = next;
    } else {
      high = next;
      reason = fit->reason;
    }
    if (high > count && low > 0) {
      next = std::min(2 * low, count);
    } else {
      next = low + (high - low) / 2;
    }
  }
  Largest largest = {.value = value_of(low), .refused = 0, .reason = reason};
  if (high <= count) largest.refused = value_of(high);
  return largest;
}

}  // namespace terrace
