// The largest of ascending values that fits: doubling, then halving what lies between.
//
// What fits is taken to fit in all that is smaller, and what does not in nothing that is larger;
// the result is of two values that were really tried.
//
// Pure but for what it is given to ask. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace terrace {

// The values: multiples of `step`, and `most` itself.
struct Steps {
  int64_t step = 1;
  int64_t most = 1;
  int64_t first = 1;  // tried first; the nearest of the values to it
};

struct Fit {
  bool fits = false;
  std::string reason;  // why not
};

struct Largest {
  int64_t value = 0;    // 0: none is known to fit
  int64_t refused = 0;  // the next value; 0: `value` is the last, or asking ended
  std::string reason;   // of `refused`
  bool ended = false;   // it was not asked further: more may fit
};

// `fits` of a value; nothing ends the asking. Each value is asked once.
Largest LargestThatFits(const Steps& steps,
                        const std::function<std::optional<Fit>(int64_t value)>& fits);

}  // namespace terrace
