// Places buffers into one arena: offline dynamic storage allocation.
//
// In: for each buffer its size and the times during which it lives. Out: one offset per buffer, in
// input order, the arena size and the lower bound that no packing can beat. Two buffers share bytes
// only if their lives do not meet. Greedy orders first, stopping at 0.5 % over the bound; where
// they do not get there, improved orders, ejections, then an exact search (docs/memory.md). Pure
// and deterministic: integer keys, stable ties, budgets counted in steps. The independent check is
// proto/program_check.h. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
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

enum class PackEffort {
  kQuick,   // the first of the greedy orders, until one is near: for comparing
  kOrders,  // greedy and improved orders only: under a second
  kFull,
};

// So many are packed as well as can be in no time.
inline constexpr size_t kSoonPacked = 512;

// What the buffers may take, where that is known. Of more than kSoonPacked then what is within it
// and 1 % over the bound of the whole arena is good enough, 2 % where no order of the portfolio
// does better.
struct PackRoom {
  int64_t bytes = 0;         // 0: it is not known
  bool only_to_fit = false;  // whatever is within it is good enough
};

// `beside_bytes` lie in the arena all the time, beside the buffers: whether a long search is worth
// its time depends on what is left of both. INVALID_ARGUMENT for an empty or inverted life or a
// size < 1, naming the buffer.
absl::StatusOr<Packing> Pack(absl::Span<const PackBuffer> buffers,
                             PackEffort effort = PackEffort::kFull, int64_t beside_bytes = 0,
                             const PackRoom& room = {});

}  // namespace terrace
