// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/workspace.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"

namespace terrace::compiler {
namespace {

using kernels::Op;

// Chunks of logits are as large as these bytes of workspace allow, but not below the rows at which
// the products are slow.
constexpr int64_t kLossWorkspaceBytes = int64_t{64} << 20;
constexpr int64_t kMinChunkRows = 256;
constexpr int64_t kChunkRowsMultiple = 32;

// The rows in equal chunks, as few as fit.
int64_t ChooseChunkRows(const Node& node, int threads) {
  const Compute& compute = *node.compute();
  const std::vector<kernels::TensorShape> shapes = ShapesOf(node);
  const int64_t rows = shapes[0].rows();
  auto attrs = std::get<kernels::LossAttrs>(compute.attrs);
  for (int64_t chunks = 1;; ++chunks) {
    const int64_t even = (rows + chunks - 1) / chunks;
    attrs.chunk_rows = (even + kChunkRowsMultiple - 1) / kChunkRowsMultiple * kChunkRowsMultiple;
    attrs.chunk_rows = std::min(attrs.chunk_rows, rows);
    if (attrs.chunk_rows <= kMinChunkRows ||
        kernels::WorkspaceBytes(compute.op, attrs, shapes, threads) <= kLossWorkspaceBytes) {
      return attrs.chunk_rows;
    }
  }
}

void ChunkLoss(int threads, Node* node) {
  auto& compute = std::get<Compute>(node->what);
  if (compute.op != Op::kLmHeadLoss && compute.op != Op::kLmHeadLossGrad) return;
  std::get<kernels::LossAttrs>(compute.attrs).chunk_rows = ChooseChunkRows(*node, threads);
}

}  // namespace

void AddWorkspaces(int threads, Graph* graph) {
  for (size_t s = 0; s < graph->sequences.size(); ++s) {
    std::vector<Node>& nodes = graph->sequences[s].nodes;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i].compute() == nullptr) continue;
      ChunkLoss(threads, &nodes[i]);
      const Compute& compute = *nodes[i].compute();
      const int64_t bytes =
          kernels::WorkspaceBytes(compute.op, compute.attrs, ShapesOf(nodes[i]), threads);
      if (bytes == 0) continue;
      nodes[i].workspace = graph->Whole(graph->Add({.name = absl::StrCat("workspace.", i),
                                                    .cls = v1::WORKSPACE,
                                                    .dtype = kernels::DType::kU8,
                                                    .shape = {bytes},
                                                    .sequence = static_cast<int>(s)}));
    }
  }
}

}  // namespace terrace::compiler
