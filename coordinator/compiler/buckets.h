// Without ZeRO: groups the gradients of parameters into contiguous buckets in the order in which a
// backward pass comes to them, so that a bucket can be reduced over the ranks while the rest is
// still computed, and lives only from its first gradient on. The order is that of the model, not
// that in which the schedule at hand finishes them: where an element lies decides in which order
// ranks add it (worker/comm/ring.h) and norms are summed, and no schedule may change a bit.
//
// A bucket holds gradients that are summed over the same groups. A gradient of bucket_bytes or more
// has a bucket of its own. Gradients of parameters that may rest off the device have buckets of
// their own and begin on a page. Pure and deterministic.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/compiler/state/parameter_gradients.h"

namespace terrace::compiler {

// Between two gradients of a bucket, or at its end: written by nobody else.
struct BucketPadding {
  Slice slice;
  size_t after = 0;  // index of the node that first writes the gradient in front of it
};

struct Bucket {
  int value = kNone;       // f32, one dimension
  int number = 0;          // in the order of the model, from its end
  size_t last_writer = 0;  // index of the node after which all of it is final
  Sums sums;
  bool streamed = false;  // of parameters that may rest off the device (tiers.h)
  std::vector<BucketPadding> padding;
};

// By the order in which they are final. REQUIRES: every gradient is written by some node of the
// sequence, and no node is inserted before the last writers later.
std::vector<Bucket> MakeBuckets(const Parameters& parameters, const ParameterGradients& gradients,
                                int64_t bucket_bytes, int sequence, Graph* graph);

}  // namespace terrace::compiler
