// Places buffers into one arena: offline dynamic storage allocation.
//
// In: for each buffer its size and the times during which it lives. Out: one offset per buffer, in
// input order, the arena size and the lower bound that no packing can beat. Two buffers share bytes
// only if their lives do not meet. Greedy orders (orders.h), the first that is within 0.5 % of
// the bound or else the best; what they leave unused pages take up (pages.h). Pure and
// deterministic: integer keys, stable ties. The independent check is proto/check/program_check.h.
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace terrace {

struct PackBuffer {
  struct Life {
    int64_t begin = 0;  // lives on [begin, end)
    int64_t end = 0;    // > begin
  };
  std::string name;   // for messages only
  int64_t bytes = 0;  // > 0
  int64_t begin = 0;  // lives on [begin, end)
  int64_t end = 0;    // > begin
  // A buffer of a loop's body holds nothing between one iteration's value and the next. Then these
  // are the times when it holds something: in order, without overlaps, the first from `begin` and
  // the last to `end`. Empty: it holds something all the time.
  std::vector<Life> lives;
};

struct Packing {
  std::vector<int64_t> offsets;  // multiples of kPackAlignment
  int64_t arena_bytes = 0;
  int64_t lower_bound_bytes = 0;  // largest sum of aligned sizes alive at one time
};

inline constexpr int64_t kPackAlignment = 256;

// INVALID_ARGUMENT for an empty or inverted life or a size < 1, naming the buffer.
absl::StatusOr<Packing> Pack(absl::Span<const PackBuffer> buffers);

}  // namespace terrace
