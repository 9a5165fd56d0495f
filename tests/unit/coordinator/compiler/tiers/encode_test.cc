// Which activations wait encoded, and what that leaves of the arena.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/tiers/encode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace::compiler {
namespace {

TinyJob Deep(const std::string& format) {
  return {.family = "llama",
          .precision = "bf16",
          .sizes = {.vocabulary = 131,
                    .hidden = 128,
                    .layers = 16,
                    .intermediate = 384,
                    .sequence = 128},
          .activation_format = format};
}

// Of the names of an op's operand in "train".
std::multiset<std::string> Names(const v1::Program& program, const std::string& op, int operand) {
  std::multiset<std::string> names;
  for (const v1::Instruction& i : SequenceOf(program, "train").instructions()) {
    if (i.compute().op() == op)
      names.insert(program.buffers(static_cast<int>(i.operands(operand).buffer())).name());
  }
  return names;
}

TEST(EncodeActivationsTest, WhatTheBackwardPassFindsWasEncodedOnceAndIsDecodedOnce) {
  const v1::Program program = CompileTiny(Deep("int8"));
  const auto encoded = Names(program, "encode_blocks", 1);
  const auto decoded = Names(program, "decode_blocks", 0);
  EXPECT_EQ(encoded, decoded);
  EXPECT_EQ(encoded.size(), std::set(encoded.begin(), encoded.end()).size());
  // Of each layer but the last ones: its input, both norms, q k v, attention, the sum behind it,
  // gate and up, and their product.
  const auto of_layer = [&](int layer) {
    const std::string prefix = absl::StrCat("mb0.layer", layer, ".");
    return std::count_if(encoded.begin(), encoded.end(),
                         [&](const std::string& name) { return absl::StartsWith(name, prefix); });
  };
  EXPECT_GE(of_layer(3), 6);
  for (int layer = 1; layer < 13; ++layer) EXPECT_EQ(of_layer(layer), of_layer(3)) << layer;
  EXPECT_EQ(of_layer(15), 0) << "its backward pass follows at once";
}

TEST(EncodeActivationsTest, ForwardPassesAndEvaluationAreWhatTheyAreWithout) {
  const v1::Program with = CompileTiny(Deep("fp8")), without = CompileTiny(Deep(""));
  const auto forward = [](const v1::Program& program, const char* sequence) {
    std::vector<std::string> texts;
    for (const v1::Instruction& i : SequenceOf(program, sequence).instructions()) {
      if (i.phase() == v1::FORWARD && i.compute().op() != "encode_blocks")
        texts.push_back(i.text());
    }
    return texts;
  };
  EXPECT_EQ(forward(with, "train"), forward(without, "train"));
  EXPECT_EQ(forward(with, "eval"), forward(without, "eval"));
}

TEST(EncodeActivationsTest, BlocksLieInsideRows) {
  TinyJob job = Deep("int8");
  job.sizes.hidden = 96;  // 4 heads of 24: rows of 96, 192 and 384
  std::set<int64_t> blocks;
  const v1::Program program = CompileTiny(job);
  for (const v1::Instruction& i : SequenceOf(program, "train").instructions()) {
    if (i.compute().op() == "encode_blocks") blocks.insert(i.compute().block().block());
  }
  EXPECT_EQ(blocks, (std::set<int64_t>{32, 64, 128}));
}

TEST(EncodeActivationsTest, RowsWithoutABlockStayAsTheyAre) {
  TinyJob job = Deep("int8");
  job.sizes.hidden = 40, job.sizes.intermediate = 72;  // rows of 40 and 72 stay, of 80 and 144 not
  const v1::Program program = CompileTiny(job);
  std::set<int64_t> columns;
  for (const v1::Instruction& i : SequenceOf(program, "train").instructions()) {
    if (i.compute().op() == "encode_blocks")
      columns.insert(i.operands(0).shape(0) / (2 * job.sizes.sequence));
  }
  EXPECT_EQ(columns, (std::set<int64_t>{80, 144}));
}

// The activations of 16 layers are most of this arena.
TEST(EncodeActivationsTest, WhatWaitsTakesHalf) {
  const auto activations = [](const std::string& format) {
    TinyJob job = Deep(format);
    const v1::Program program = CompileTiny(job);
    int64_t persistent = 0;
    for (const v1::Buffer& buffer : program.buffers())
      if (buffer.lifetime() == v1::PERSISTENT) persistent += buffer.bytes();
    return static_cast<double>(program.arenas(0).bytes() - persistent);
  };
  const double whole = activations("");
  // A layer keeps 11 rows of hidden in 16 bits, of which 2 layers stay; all weights' gradients are
  // there at the end.
  EXPECT_LT(activations("int8"), 0.8 * whole);
  EXPECT_EQ(activations("int8"), activations("fp8"));
}

}  // namespace
}  // namespace terrace::compiler
