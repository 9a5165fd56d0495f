// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/graph/workspace.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/program/op_workspace.h"

namespace terrace::compiler {
namespace {

using kernels::Op;

// Chunks of logits are as large as these bytes of workspace allow, but not below the rows at which
// the products are slow.
constexpr int64_t kLossWorkspaceBytes = int64_t{64} << 20;
constexpr int64_t kMinChunkRows = 256;
// A GPU wants longer products, and what it needs beside the logits is the same for any chunk.
constexpr int64_t kCudaChunkBytes = int64_t{192} << 20;
constexpr int64_t kChunkRowsMultiple = 32;

// Where the node runs.
WorkspaceTarget TargetOf(const Graph& graph, const Node& node, std::string_view device,
                         int threads) {
  const auto on_host = [&](const Slice& slice) {
    return !slice.absent() && graph.TierOf(slice) == v1::HOST;
  };
  return {.device = device,
          .on_host = std::any_of(node.operands.begin(), node.operands.end(), on_host),
          .threads = threads};
}

int64_t LossWorkspaceLimit(const Compute& compute, kernels::LossAttrs attrs,
                           const std::vector<kernels::TensorShape>& shapes,
                           const WorkspaceTarget& target) {
  if (target.device != "cuda") return kLossWorkspaceBytes;
  attrs.chunk_rows = std::min(kMinChunkRows, shapes[0].rows());
  return WorkspaceBytes(target, compute.op, attrs, shapes) + kCudaChunkBytes;
}

// The rows in equal chunks, as few as fit.
int64_t ChooseChunkRows(const Node& node, const WorkspaceTarget& target) {
  const Compute& compute = *node.compute();
  const std::vector<kernels::TensorShape> shapes = ShapesOf(node);
  const int64_t rows = shapes[0].rows();
  auto attrs = std::get<kernels::LossAttrs>(compute.attrs);
  const int64_t limit = LossWorkspaceLimit(compute, attrs, shapes, target);
  for (int64_t chunks = 1;; ++chunks) {
    const int64_t even = (rows + chunks - 1) / chunks;
    attrs.chunk_rows = (even + kChunkRowsMultiple - 1) / kChunkRowsMultiple * kChunkRowsMultiple;
    attrs.chunk_rows = std::min(attrs.chunk_rows, rows);
    if (attrs.chunk_rows <= kMinChunkRows ||
        WorkspaceBytes(target, compute.op, attrs, shapes) <= limit) {
      return attrs.chunk_rows;
    }
  }
}

void ChunkLoss(const WorkspaceTarget& target, Node* node) {
  auto& compute = std::get<Compute>(node->what);
  if (compute.op != Op::kLmHeadLoss && compute.op != Op::kLmHeadLossGrad) return;
  std::get<kernels::LossAttrs>(compute.attrs).chunk_rows = ChooseChunkRows(*node, target);
}

}  // namespace

void AddWorkspaces(int threads, Graph* graph, std::string_view device) {
  for (size_t s = 0; s < graph->sequences.size(); ++s) {
    std::vector<Node>& nodes = graph->sequences[s].nodes;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i].compute() == nullptr) continue;
      const WorkspaceTarget target = TargetOf(*graph, nodes[i], device, threads);
      ChunkLoss(target, &nodes[i]);
      const Compute& compute = *nodes[i].compute();
      const int64_t bytes = WorkspaceBytes(target, compute.op, compute.attrs, ShapesOf(nodes[i]));
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
