// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/state/parameters.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/unit/coordinator/compiler/tiny_stage.h"

namespace terrace::compiler {
namespace {

TEST(ParametersTest, EveryTensorIsInExactlyOneParameter) {
  for (const std::string& family : Families()) {
    const TinyStage stage({.family = family});
    const Graph& graph = stage.graph;
    std::multiset<std::string> names;
    for (const Parameter& parameter : stage.parameters.all()) {
      int64_t elements = 0;
      for (const Part& part : parameter.parts) {
        names.insert(part.tensor->name);
        elements += part.tensor->elements();
      }
      EXPECT_EQ(graph.values[parameter.weight].elements(), elements);
      EXPECT_EQ(graph.values[parameter.moments.numbers[0]].shape,
                graph.values[parameter.weight].shape);
    }
    for (const Tensor& tensor : stage.model.tensors) {
      EXPECT_EQ(names.count(tensor.name), 1u) << tensor.name;
    }
    EXPECT_EQ(names.size(), stage.model.tensors.size()) << family;
  }
}

TEST(ParametersTest, TensorsThatShareTheirInputLieSideBySide) {
  const TinyStage stage({.family = "qwen2"});
  const auto shape = [&](TensorRole role, int layer) {
    return stage.graph.values[WeightOf(stage, role, layer).value].shape;
  };
  EXPECT_EQ(shape(TensorRole::kQ, 1), (Dims{32 + 16 + 16, 32}));
  EXPECT_EQ(shape(TensorRole::kQBias, 1), (Dims{64}));
  EXPECT_EQ(shape(TensorRole::kMlpGate, 0), (Dims{96, 32}));
  EXPECT_TRUE(WeightOf(stage, TensorRole::kK, 1).absent());
}

TEST(ParametersTest, ParametersOfALayerDoNotOverlapInItsBuffer) {
  const TinyStage stage({.family = "qwen3"});
  const Graph& graph = stage.graph;
  std::map<int, int64_t> end;  // by buffer
  for (const Parameter& parameter : stage.parameters.all()) {
    const Slice root = graph.Root(graph.Whole(parameter.weight));
    EXPECT_GE(root.offset, end[root.value]);
    EXPECT_EQ(root.offset % 16, 0);
    end[root.value] = root.offset + graph.values[parameter.weight].elements();
    EXPECT_LE(end[root.value], graph.values[root.value].elements());
  }
  EXPECT_EQ(end.size(), 4u);  // embedding, two layers, head
}

TEST(ParametersTest, TheManifestCoversEachTensorOnceAKind) {
  const v1::Program program = CompileTiny({.family = "llama"});
  const Model model = TinyModel("llama");
  std::map<std::pair<std::string, v1::StateKind>, int> seen;
  for (const v1::StateRange& range : program.state()) {
    ++seen[{range.tensor(), range.kind()}];
    const v1::Buffer& buffer = program.buffers(range.buffer());
    EXPECT_EQ(buffer.lifetime(), v1::PERSISTENT);
    EXPECT_LE(range.offset() + range.rows() * range.columns() * 4, buffer.bytes());
    EXPECT_EQ(range.row(), 0);
    EXPECT_EQ(range.column(), 0);
  }
  EXPECT_EQ(seen.size(), 3 * model.tensors.size());
  for (const auto& [key, count] : seen) EXPECT_EQ(count, 1) << key.first;
  EXPECT_EQ(program.initializers_size(), static_cast<int>(model.tensors.size()));
}

}  // namespace
}  // namespace terrace::compiler
