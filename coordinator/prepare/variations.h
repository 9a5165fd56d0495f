// The ways to change a spec so that its job needs less memory, the cheapest first: another layout
// (a smaller micro-batch, recompute, ZeRO, other degrees of parallelism, where they were pinned)
// costs nothing but time, and so do the host's memory and NVMe; bf16 costs digits, a shorter
// sequence changes what is learned.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/v1/job.pb.h"

namespace terrace {

// A spec with some keys changed, and the changes in words.
struct Variation {
  v1::JobSpec spec;
  std::vector<std::string> changes;  // but those of its layout, which is only left open
};

// With its buckets: the longest is as long as the samples.
void SetSequenceLength(int64_t length, v1::JobSpec* spec);

// With its precision and sequences of its length, then of half of it, and so on.
std::vector<Variation> Shorter(const Variation& variation);
Variation WithBf16(Variation variation);

// The spec itself, then with more and more of its layout left open. Never none.
std::vector<Variation> WithLayoutReleased(const Variation& variation);
// The layout left open and offloaded, to the host and to NVMe, farther and farther; none if the
// spec has a word on it. Only memory that the spec does not mention is asked for.
std::vector<Variation> WithOffload(const Variation& variation);

}  // namespace terrace
