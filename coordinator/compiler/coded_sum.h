// The sum of gradients over ranks that each keep a part of it, sent in codes of 8 bits: a rank
// encodes all that it has in blocks, the ranks exchange their parts, and each adds up in f32 what
// those of its own are worth. Nothing is rounded twice, as it would be on the way round a ring:
// quantised reduce-scatter by all-to-all, Wang et al. 2023 (ZeRO++, arXiv 2306.10209, section 3.3).
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

struct CodedSumOptions {
  const kernels::FormatRow& format;  // one with blocks
  int group = kNone;
  Slice all;   // a gradient of [ranks n] elements
  Slice part;  // [n] of this rank, which is written
  std::string name;
  int sequence = 0;
};

struct CodedSum {
  std::vector<Node> sent;  // in this order, when the gradient is final
  Node added_up;           // when the others' codes have had time to arrive
};

// Adds the values of messages to the graph.
CodedSum SumInCodes(const CodedSumOptions& options, Graph* graph);

}  // namespace terrace::compiler
