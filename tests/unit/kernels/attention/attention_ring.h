// Ring attention on ranks that are simulated one after the other: an attention problem whose tokens
// are dealt to the ranks of a context, each of which runs kAttentionBlock over the steps of the
// ring, then kAttentionBlockGrad with the keys' gradients passed on.
//
// Queries, keys and values of a rank are column slices of one fused buffer, as in a model. Every
// output starts as NaN; no column between the slices may change.
//
// Thread-compatible: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/op.h"
#include "tests/unit/kernels/attention/attention_case.h"

namespace terrace::kernels {

struct Ring {
  int64_t ranks = 1;
  bool zigzag = false;
};

// What all ranks together compute, in the order of the whole sequence. Adds a test failure when a
// kernel reports an error or writes where it must not.
AttentionValues RunRing(const AttentionCase& whole, const Ring& ring,
                        const cpu::AttentionEngine& engine, int threads);
AttentionValues RunRing(const AttentionCase& whole, const Ring& ring, int threads);

}  // namespace terrace::kernels
