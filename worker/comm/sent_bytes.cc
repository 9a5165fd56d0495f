// SPDX-License-Identifier: Apache-2.0
#include "worker/comm/sent_bytes.h"

#include <algorithm>

namespace terrace {

int64_t SentByAllReduce(Place place, int64_t elements, int64_t element_bytes) {
  if (place.size == 1) return 0;
  const int64_t part = (elements + place.size - 1) / place.size;
  const auto elements_of = [&](int64_t p) {
    return std::min(elements, (p + 1) * part) - std::min(elements, p * part);
  };
  const int right = (place.rank + 1) % place.size;
  return (2 * elements - elements_of(place.rank) - elements_of(right)) * element_bytes;
}

int64_t SentByParts(Place place, int64_t part_bytes) { return part_bytes * (place.size - 1); }

int64_t SentByRingShift(Place place, int64_t bytes) { return place.size == 1 ? 0 : bytes; }

// Seen from the root, member v sends to v plus each bit below its lowest one.
int64_t SentByBroadcast(Place place, int64_t bytes, int root) {
  const int seen = (place.rank + place.size - root) % place.size;
  int64_t children = 0;
  for (int bit = 1; bit < place.size && (seen & bit) == 0; bit *= 2) {
    if (seen + bit < place.size) ++children;
  }
  return children * bytes;
}

}  // namespace terrace
