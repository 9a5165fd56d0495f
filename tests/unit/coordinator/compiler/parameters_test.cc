// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/parameters.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace::compiler {
namespace {

TEST(ParametersTest, EveryTensorIsInExactlyOneParameter) {
  for (const std::string& family : Families()) {
    const Model model = TinyModel(family);
    Graph graph;
    const Parameters parameters(model, /*with_optimizer=*/true, &graph);
    std::multiset<std::string> names;
    for (const Parameter& parameter : parameters.all()) {
      int64_t elements = 0;
      for (const Tensor* tensor : parameter.tensors) {
        names.insert(tensor->name);
        elements += tensor->elements();
      }
      EXPECT_EQ(graph.values[parameter.weight].elements(), elements);
      EXPECT_EQ(graph.values[parameter.adam_m].shape, graph.values[parameter.weight].shape);
    }
    for (const Tensor& tensor : model.tensors)
      EXPECT_EQ(names.count(tensor.name), 1u) << tensor.name;
    EXPECT_EQ(names.size(), model.tensors.size()) << family;
  }
}

TEST(ParametersTest, TensorsThatShareTheirInputLieSideBySide) {
  const Model model = TinyModel("qwen2");
  Graph graph;
  const Parameters parameters(model, /*with_optimizer=*/false, &graph);
  EXPECT_EQ(graph.values[parameters.Weight(graph, TensorRole::kQ, 1).value].shape,
            (Dims{32 + 16 + 16, 32}));
  EXPECT_EQ(graph.values[parameters.Weight(graph, TensorRole::kQBias, 1).value].shape, (Dims{64}));
  EXPECT_EQ(graph.values[parameters.Weight(graph, TensorRole::kMlpGate, 0).value].shape,
            (Dims{96, 32}));
  EXPECT_TRUE(parameters.Weight(graph, TensorRole::kK, 1).absent());
}

TEST(ParametersTest, ParametersOfALayerDoNotOverlapInItsBuffer) {
  const Model model = TinyModel("qwen3");
  Graph graph;
  const Parameters parameters(model, /*with_optimizer=*/false, &graph);
  std::map<int, int64_t> end;  // by buffer
  for (const Parameter& parameter : parameters.all()) {
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
    EXPECT_LE(range.offset() + range.elements() * 4, buffer.bytes());
    EXPECT_EQ(range.tensor_begin(), 0);
  }
  EXPECT_EQ(seen.size(), 3 * model.tensors.size());
  for (const auto& [key, count] : seen) EXPECT_EQ(count, 1) << key.first;
  EXPECT_EQ(program.initializers_size(), static_cast<int>(model.tensors.size()));
}

}  // namespace
}  // namespace terrace::compiler
