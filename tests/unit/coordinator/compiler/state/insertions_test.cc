// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/state/insertions.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "coordinator/compiler/graph/builder.h"
#include "tests/unit/coordinator/compiler/tiny_stage.h"

namespace terrace::compiler {
namespace {

std::vector<std::string> Texts(const std::vector<Node>& nodes) {
  std::vector<std::string> texts;
  for (const Node& node : nodes) texts.push_back(node.text);
  return texts;
}

using Strings = std::vector<std::string>;

TEST(InsertionsTest, NodesFollowTheirPlaceInTheOrderOfAdding) {
  std::vector<Node> nodes = {{.text = "a", .mark = 1, .pass = 4}, {.text = "b", .mark = 2}};
  Insertions insertions;
  insertions.After(1, {.text = "b1"});
  insertions.After(0, {.text = "a1"});
  insertions.After(0, {.text = "a2"});
  insertions.Apply(&nodes);
  EXPECT_EQ(Texts(nodes), (Strings{"a", "a1", "a2", "b", "b1"}));
  EXPECT_EQ(nodes[2].mark, 1);
  EXPECT_EQ(nodes[2].pass, 4);
  EXPECT_EQ(nodes[4].mark, 2);
  insertions.Apply(&nodes);  // nothing is left
  EXPECT_EQ(nodes.size(), 5u);
}

// Passes of two layers each, as a schedule lays them out.
class MoveFetchesAheadTest : public testing::Test {
 protected:
  MoveFetchesAheadTest() : builder_(&graph_, 0) {
    graph_.sequences.push_back({.name = "train"});
    x_ = builder_.NewValue("x", v1::ACTIVATION, kernels::DType::kF32, {4});
    builder_.Input(v1::LOAD_SCHEDULE, {x_}, "load");
  }
  void Compute(const std::string& text) {
    builder_.Compute(kernels::Op::kFill, kernels::FillAttrs{}, {x_}, text);
  }
  Strings Moved() {
    std::vector<Node>& nodes = graph_.sequences[0].nodes;
    MoveFetchesAhead(graph_, &nodes);
    return Texts(nodes);
  }

  Graph graph_;
  Builder builder_;
  Slice x_;
};

TEST_F(MoveFetchesAheadTest, ReceivesMoveByOnePassAndBehindTheInputs) {
  for (const char* pass : {"a", "b", "c"}) {
    builder_.MarkPass();
    builder_.Receive(0, 1, x_, std::string("receive ") + pass);
    Compute(std::string(pass) + "1");
    builder_.Mark();
    Compute(std::string(pass) + "2");
    builder_.Send(0, 1, kNone, x_, std::string("send ") + pass);
  }
  EXPECT_EQ(Moved(), (Strings{"load", "receive a", "receive b", "a1", "a2", "send a", "receive c",
                              "b1", "b2", "send b", "c1", "c2", "send c"}));
}

TEST_F(MoveFetchesAheadTest, GathersOfWeightsMoveByOneLayerAndOtherGathersStay) {
  const Slice master = graph_.Whole(graph_.Add(
      {.name = "master", .cls = v1::PARAMETER, .shape = {4}, .lifetime = v1::PERSISTENT}));
  for (const char* layer : {"a", "b", "c"}) {
    builder_.Mark();
    Compute(std::string(layer) + "1");
    const Slice weights = builder_.NewValue("w", v1::PARAMETER, kernels::DType::kF32, {8});
    builder_.Collective(v1::ALL_GATHER, 0, master, weights, std::string("gather ") + layer);
    const Slice y = builder_.NewValue("y", v1::ACTIVATION, kernels::DType::kF32, {8});
    builder_.Collective(v1::ALL_GATHER, 0, x_, y, std::string("tokens ") + layer);
  }
  EXPECT_EQ(Moved(), (Strings{"load", "gather a", "gather b", "a1", "tokens a", "gather c", "b1",
                              "tokens b", "c1", "tokens c"}));
}

TEST_F(MoveFetchesAheadTest, AGatherThatStaysIsBeforeThoseThatComeThere) {
  const Slice master = graph_.Whole(graph_.Add(
      {.name = "master", .cls = v1::PARAMETER, .shape = {4}, .lifetime = v1::PERSISTENT}));
  for (const char* layer : {"a", "b"}) {
    builder_.Mark();
    const Slice weights = builder_.NewValue("w", v1::PARAMETER, kernels::DType::kF32, {8});
    builder_.Collective(v1::ALL_GATHER, 0, master, weights, std::string("gather ") + layer);
    Compute(std::string(layer) + "1");
  }
  EXPECT_EQ(Moved(), (Strings{"load", "gather a", "gather b", "a1", "b1"}));
}

}  // namespace
}  // namespace terrace::compiler
