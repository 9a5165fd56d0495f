// The sum of gradients over ranks that each keep a part of it, sent in codes of 8 or 4 bits: a rank
// encodes all that it has in blocks, the ranks exchange their parts, and each adds up in f32 what
// those of its own are worth. Nothing is rounded on the way, as it would be round a ring: quantised
// reduce-scatter by all-to-all, Wang et al. 2023 (ZeRO++, arXiv 2306.10209, section 3.3).
//
// In two levels the ranks of a block, which share a node, exchange first: each adds up the parts of
// all ranks that have its place in their blocks, and these exchange the codes of those sums. What
// is sent between nodes is then one block's sum instead of what each of its ranks has. It is
// rounded twice, the second time in 8 bits (CodesOfSums in layout/formats.h).
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "coordinator/compiler/graph/graph.h"
#include "kernels/format.h"

namespace terrace::compiler {

// The ranks that exchange, in this order, and the format of what they send: one with blocks.
struct CodedSumLevel {
  int group = kNone;
  int64_t ranks = 1;
  const kernels::FormatRow* format = nullptr;
};

struct CodedSumOptions {
  // One of all ranks, or that of a block and that of the ranks of one place.
  std::vector<CodedSumLevel> levels;
  Slice all;   // a gradient of [ranks n] elements
  Slice part;  // [n] of this rank, which is written
  // [ranks n] that last from step to step, or absent: an average of what the first codes were not
  // worth, which is added to the next gradient (KeptResidual in kernels/block_codes.h). What sums
  // lose on their way is less and is not kept.
  Slice residual;
  std::string name;
  int sequence = 0;
};

// Adds the values of messages to the graph. Nodes to be put in, in this order: the first when the
// gradient is final, each of the others when what those before have sent has had time to arrive.
std::vector<std::vector<Node>> SumInCodes(const CodedSumOptions& options, Graph* graph);

}  // namespace terrace::compiler
