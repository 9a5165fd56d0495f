// A stage of a tiny job before and while its sequences are built, for tests of single passes.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/compiler/stage.h"
#include "coordinator/layout/rules.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace::compiler {

// Owns everything that passes borrow, so it stays where it was made.
class TinyStage {
 public:
  explicit TinyStage(const TinyJob& job, int index = 0)
      : TinyStage(TinyModel(job.family, job.sizes), TinyLayout(job), index,
                  {.persistent_elements = job.persistent_parameters,
                   .gathers = GatherFormat(TinyLayout(job))}) {
    sequence = job.sizes.sequence;
    if (job.precision == "bf16") activation = kernels::DType::kBF16;
    if (model.config.rope.inverse_frequency.empty()) return;
    rope_table = graph.Add(
        {.name = "rope", .shape = {sequence, model.config.head_dim}, .lifetime = v1::PERSISTENT});
  }
  TinyStage(Model from, const v1::Layout& pinned, int index = 0, ParametersOptions options = {})
      : model(std::move(from)),
        layout(Completed(pinned)),
        shape(ShapeOf(layout)),
        stage(index),
        chunks(SplitLayers(layout, static_cast<int>(model.config.layers))),
        parallel(AddGroups(layout, model.config, &graph)),
        parameters(model, OwnChunks(), parallel, options, &graph),
        context{model, layout, parallel, parameters, shape, stage, chunks},
        gradients(parameters, parallel, context.InRuns()) {}
  TinyStage(const TinyStage&) = delete;
  TinyStage& operator=(const TinyStage&) = delete;

  ForwardOptions Options() const {
    return {.batch = 2,
            .sequence = sequence,
            .precisions = {.activation = activation},
            .for_backward = true,
            .rope_tables = {.rope = rope_table}};
  }

  // The passes in a sequence "train".
  void Run(const std::vector<Pass>& passes) {
    graph.sequences.push_back({.name = "train"});
    Builder builder(&graph, 0);
    StagePasses stage_passes(context, Options(), &builder);
    const int64_t tokens = 2 * sequence / parallel.context();
    std::map<int, BatchSlices> batches;
    for (const Pass& pass : passes) {
      ParameterGradients* into = &gradients.Of(pass.micro_batch, pass.chunk);
      if (pass.kind == PassKind::kForward) {
        BatchSlices& batch = batches[pass.micro_batch];
        if (batch.stats.absent()) {
          batch = {
              .tokens = builder.NewValue("tokens", v1::INPUT, kernels::DType::kI32, {tokens}),
              .targets = builder.NewValue("targets", v1::INPUT, kernels::DType::kI32, {tokens}),
              .stats = builder.NewValue("stats", v1::ACTIVATION, kernels::DType::kF32, {2})};
        }
        stage_passes.RunForward(pass.micro_batch, pass.chunk, batch, into);
      } else if (pass.kind == PassKind::kBackwardWeight) {
        stage_passes.RunWeights(pass.micro_batch, pass.chunk);
      } else {
        ASSERT_EQ(stage_passes.RunBackward(pass.micro_batch, pass.chunk,
                                           pass.kind == PassKind::kBackwardInput, into),
                  absl::OkStatus());
      }
    }
  }
  // Forward and backward of so many micro-batches, one after the other.
  void RunMicroBatches(int count) {
    std::vector<Pass> passes;
    for (int i = 0; i < count; ++i) {
      passes.push_back({.kind = PassKind::kForward, .micro_batch = i});
      passes.push_back({.kind = PassKind::kBackward, .micro_batch = i});
    }
    Run(passes);
  }

  const std::vector<Node>& nodes() const { return graph.sequences.at(0).nodes; }
  int Root(const Slice& slice) const { return graph.Root(slice).value; }

  Graph graph;
  const Model model;
  const v1::Layout layout;
  const ScheduleShape shape;
  const int stage;
  const std::vector<ChunkRange> chunks;
  const Parallel parallel;
  const Parameters parameters;
  const StageContext context;
  GradientScopes gradients;
  int64_t sequence = 12;
  kernels::DType activation = kernels::DType::kF32;
  int rope_table = kNone;

 private:
  std::vector<ChunkRange> OwnChunks() const {
    std::vector<ChunkRange> own;
    for (int chunk = 0; chunk < shape.chunks; ++chunk) {
      own.push_back(chunks[ModelChunk(shape, stage, chunk)]);
    }
    return own;
  }
};

// The weight of the parameter that starts with the tensor of this role; absent when there is none.
inline Slice WeightOf(const TinyStage& stage, TensorRole role, int layer = kNone) {
  const int index = stage.parameters.Find(role, layer);
  return index == kNone ? Slice{} : stage.graph.Whole(stage.parameters.all()[index].weight);
}

inline bool IsOp(const Node& node, kernels::Op op) {
  return node.compute() != nullptr && node.compute()->op == op;
}

}  // namespace terrace::compiler
