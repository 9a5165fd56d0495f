// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/graph/workspace.h"

#include <gtest/gtest.h>

#include "coordinator/compiler/graph/builder.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace::compiler {
namespace {

int64_t ChunkRows(int64_t tokens, int64_t vocabulary) {
  Graph graph;
  graph.sequences.push_back({.name = "eval"});
  Builder builder(&graph, 0);
  const auto value = [&](kernels::DType dtype, const Dims& dims) {
    return builder.NewValue("v", v1::ACTIVATION, dtype, dims);
  };
  builder.Compute(kernels::Op::kLmHeadLoss, kernels::LossAttrs{},
                  {value(kernels::DType::kBF16, {tokens, 64}),
                   value(kernels::DType::kF32, {vocabulary, 64}),
                   value(kernels::DType::kI32, {tokens}),
                   value(kernels::DType::kF32, {2}),
                   {}},
                  "loss");
  AddWorkspaces(2, &graph);
  return std::get<kernels::LossAttrs>(graph.sequences[0].nodes[0].compute()->attrs).chunk_rows;
}

TEST(WorkspaceTest, SmallVocabulariesAreDoneInOneChunk) {
  EXPECT_EQ(ChunkRows(2048, 256), 2048);
  EXPECT_EQ(ChunkRows(24, 61), 24);
}

TEST(WorkspaceTest, LargeVocabulariesAreCutButNotBelowUsefulRows) {
  const int64_t rows = ChunkRows(2048, 50257);
  EXPECT_GE(rows, 128);
  EXPECT_LE(rows, 512);
  EXPECT_GE(ChunkRows(8192, 151936), 128);
  EXPECT_LE(ChunkRows(8192, 151936), 256);
}

TEST(WorkspaceTest, EveryInstructionBringsWhatItsOpNeeds) {
  const v1::Program program = CompileTiny({.family = "qwen3", .precision = "bf16"});
  int with_workspace = 0;
  for (const v1::Instruction& instruction : SequenceOf(program, "train").instructions()) {
    if (!instruction.compute().has_workspace()) continue;
    const v1::Buffer& buffer = program.buffers(instruction.compute().workspace().buffer());
    EXPECT_EQ(buffer.class_(), v1::WORKSPACE);
    EXPECT_EQ(buffer.lifetime(), v1::STEP);
    ++with_workspace;
  }
  EXPECT_GT(with_workspace, 0);
}

}  // namespace
}  // namespace terrace::compiler
