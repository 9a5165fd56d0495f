// Groups the gradients of parameters into contiguous buckets in the order in which the backward
// pass finishes them, so that a bucket can be reduced over the data-parallel ranks while the rest
// is still computed, and lives only from its first gradient on.
//
// A gradient of bucket_bytes or more has a bucket of its own. Gradients lie in their bucket without
// gaps: all of it is written before it is read. Pure and deterministic.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "coordinator/compiler/autodiff.h"

namespace terrace::compiler {

struct Bucket {
  int value = kNone;       // f32, one dimension
  size_t last_writer = 0;  // index of the node after which all of it is final
};

// REQUIRES: every gradient is written by some node of the sequence, and no node is inserted before
// the last writers later.
std::vector<Bucket> MakeBuckets(const ParameterGradients& gradients, int64_t bucket_bytes,
                                int sequence, Graph* graph);

// Inserts make(i) right after the last writer of bucket i, for all buckets.
void InsertWhenFinal(const std::vector<Bucket>& buckets, int sequence,
                     const std::function<Node(size_t bucket)>& make, Graph* graph);

}  // namespace terrace::compiler
