// What a member sends, by the formulas at Communicator::bytes_sent: for communicators whose network
// does not count. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace terrace {

// A member's place in its group.
struct Place {
  int rank = 0;
  int size = 1;
};

int64_t SentByAllReduce(Place place, int64_t elements, int64_t element_bytes);
// Reduce-scatter, all-gather, all-to-all: of parts of so many bytes.
int64_t SentByParts(Place place, int64_t part_bytes);
int64_t SentByRingShift(Place place, int64_t bytes);
int64_t SentByBroadcast(Place place, int64_t bytes, int root);

}  // namespace terrace
