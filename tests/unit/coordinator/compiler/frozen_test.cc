// Programs of models of which a part is frozen.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "proto/check/program_check.h"
#include "proto/program/sequences.h"
#include "tests/unit/coordinator/compiler/layout_matrix.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

// Patterns in the order in which they count; "!" before one that is trained.
using Groups = std::vector<std::string>;

const Groups kLowerHalf = {"*embed*", "*wte*", "*wpe*", "*layers.[01].*", "*h.[01].*"};
const Groups kUpperHalf = {"*layers.[23].*", "*h.[23].*", "*norm.weight", "*ln_f*", "*lm_head*"};
const Groups kAttention = {"*attn*"};
const Groups kAllButVectors = {"*", "!*norm*", "!*ln_*", "!*.bias"};
const Groups kAllButOneLayer = {"*", "!*layers.2.*", "!*h.2.*"};
const std::vector<Groups> kAllGroups = {kLowerHalf, kUpperHalf, kAttention, kAllButVectors,
                                        kAllButOneLayer};

v1::JobSpec SpecOf(const Groups& groups, double clip_grad_norm = 1) {
  v1::JobSpec spec = MatrixSpec();
  spec.mutable_train()->set_clip_grad_norm(clip_grad_norm);
  for (const std::string& match : groups) {
    v1::ParameterGroup* group = spec.mutable_train()->mutable_optimizer()->add_groups();
    const bool trained = match[0] == '!';
    group->set_match(trained ? match.substr(1) : match);
    group->set_lr_scale(1);
    group->set_frozen(!trained);
  }
  return spec;
}

absl::StatusOr<std::vector<v1::Program>> CompileFrozen(const LayoutCase& c, const Groups& groups,
                                                       double clip_grad_norm = 1) {
  const v1::JobSpec spec = SpecOf(groups, clip_grad_norm);
  const Model model = MatrixModel(c.family);
  return Compile({.spec = &spec, .model = &model, .layout = c.layout});
}

size_t Every() { return std::getenv("TERRACE_ALL_LAYOUTS") != nullptr ? 1 : 29; }

void ExpectOnlyWeightsOfFrozen(const v1::Program& program, const std::string& what) {
  std::map<std::string, const v1::Initializer*> initializers;
  for (const v1::Initializer& init : program.initializers()) initializers[init.tensor()] = &init;
  for (const v1::StateRange& range : program.state()) {
    const v1::Initializer& init = *initializers.at(range.tensor());
    EXPECT_TRUE(!init.frozen() || range.kind() == v1::WEIGHT) << what << ", " << range.tensor();
  }
}

TEST(FrozenTest, EveryCombinationPassesTheChecker) {
  int failures = 0;
  size_t index = 0;
  for (LayoutCase c : LayoutMatrix(8, Every())) {
    const Groups& groups = kAllGroups[index % kAllGroups.size()];
    const bool offloads = index % 3 == 1;
    const double clip = index % 4 == 3 ? 0 : 1;  // where updates may come at once
    if (offloads) PutOn(v1::HOST, c.layout.mutable_offload()->mutable_optimizer());
    if (offloads && c.layout.zero_stage() % 3 == 0)
      PutOn(v1::HOST, c.layout.mutable_offload()->mutable_parameter());
    if (c.layout.precision() == "bf16" && index % 2 == 0) c.layout.set_parameter_format("bf16");
    const std::string what = absl::StrCat(Describe(c), ", groups ", index++ % kAllGroups.size(),
                                          offloads ? ", offloaded" : "");
    const auto programs = CompileFrozen(c, groups, clip);
    const absl::Status status = programs.ok() ? CheckPrograms(*programs) : programs.status();
    EXPECT_EQ(status, absl::OkStatus()) << what;
    if (!status.ok() && ++failures > 10) FAIL() << "too many";
    if (!programs.ok()) continue;
    for (const v1::Program& program : *programs) ExpectOnlyWeightsOfFrozen(program, what);
  }
  EXPECT_GT(index, 50u);
}

// Of a pass, in any of a program's sequences that train.
int Count(const v1::Program& program, const std::function<bool(const v1::Instruction&)>& is) {
  int count = 0;
  for (const v1::Sequence& sequence : program.sequences()) {
    if (!IsTrain(sequence.name())) continue;
    count += static_cast<int>(
        std::count_if(sequence.instructions().begin(), sequence.instructions().end(), is));
  }
  return count;
}

bool IsBackward(const v1::Instruction& instruction) {
  const bool phase = instruction.phase() == v1::BACKWARD || instruction.phase() == v1::RECOMPUTE;
  return phase && (instruction.layer() >= 0 || instruction.has_transfer());
}

TEST(FrozenTest, NothingBelowTheFirstTrainedWeightHasABackwardPass) {
  for (const std::string& family : Families()) {
    LayoutCase c = {family, MatrixLayout()};
    c.layout.set_recompute("block");
    const auto one = CompileFrozen(c, kLowerHalf).value();
    std::set<int> layers;
    Count(one[0], [&](const v1::Instruction& instruction) {
      if (IsBackward(instruction) && instruction.layer() >= 0) layers.insert(instruction.layer());
      return true;
    });
    EXPECT_EQ(layers, (std::set<int>{2, 3})) << family;
    c.layout.set_pipeline_parallel(2);
    const auto two = CompileFrozen(c, kLowerHalf).value();
    EXPECT_EQ(Count(two[0], IsBackward), 0) << family;
    EXPECT_GT(Count(two[1], IsBackward), 0) << family;
    EXPECT_EQ(CheckPrograms(two), absl::OkStatus()) << family;
  }
}

// Persistent buffers of frozen units, by what they are.
std::map<std::string, int> FrozenBuffers(const v1::Program& program) {
  std::map<std::string, int> kinds;
  for (const v1::Buffer& buffer : program.buffers()) {
    if (buffer.lifetime() == v1::PERSISTENT && buffer.name().ends_with(".frozen"))
      ++kinds[buffer.name().substr(0, buffer.name().find('.'))];
  }
  return kinds;
}

int64_t GradientBytes(const v1::Program& program) {
  int64_t bytes = 0;
  for (const v1::Buffer& buffer : program.buffers()) {
    if (buffer.class_() == v1::GRADIENT) bytes += buffer.bytes();
  }
  return bytes;
}

// In one region of the type that passes read; every rank has all of it, or with ZeRO-3 a shard.
TEST(FrozenTest, FrozenWeightsHaveNeitherMastersNorMomentsNorGradients) {
  LayoutCase c = {"llama", MatrixLayout()};
  c.layout.set_precision("bf16");
  c.layout.set_parameter_format("bf16");
  c.layout.set_micro_batches(1);
  for (const uint32_t zero : {0, 1, 2, 3}) {
    c.layout.set_zero_stage(zero);
    c.layout.set_data_parallel(zero == 0 ? 1 : 2);
    const v1::Program program = CompileFrozen(c, kAllButOneLayer).value()[0];
    const v1::Program whole = CompileFrozen(c, {}).value()[0];
    for (const v1::StateRange& range : program.state()) {
      if (absl::StrContains(range.tensor(), ".2.") || range.shape_size() < 2) continue;
      EXPECT_EQ(range.dtype(), v1::BF16) << range.tensor();
      EXPECT_EQ(range.shard_elements() > 0, zero == 3) << zero << " " << range.tensor();
    }
    // Embedding, head and three layers; norms.
    const std::map<std::string, int> kinds = FrozenBuffers(program);
    const std::map<std::string, int> sharded = {{"master", 5}, {"weights", 1}};
    const std::map<std::string, int> all = {{"weights", zero == 0 ? 9 : 6}};
    EXPECT_EQ(kinds, zero == 3 ? sharded : all) << zero;
    EXPECT_LT(GradientBytes(program), GradientBytes(whole) / 3) << zero;
  }
}

std::string Refusal(const std::function<void(v1::Program*)>& change) {
  LayoutCase c = {"llama", MatrixLayout()};
  v1::Program program = CompileFrozen(c, kUpperHalf).value()[0];
  change(&program);
  return std::string(CheckProgram(program).message());
}

v1::Initializer* Find(const std::string& tensor, v1::Program* program) {
  for (v1::Initializer& init : *program->mutable_initializers()) {
    if (init.tensor() == tensor) return &init;
  }
  return nullptr;
}

constexpr char kTrained[] = "model.layers.0.mlp.up_proj.weight";
constexpr char kFrozen[] = "model.layers.3.mlp.up_proj.weight";

TEST(FrozenTest, TheCheckerKnowsWhatIsFrozen) {
  EXPECT_THAT(Refusal([](v1::Program*) {}), IsEmpty());
  EXPECT_THAT(Refusal([](v1::Program* p) { Find(kFrozen, p)->set_frozen(false); }),
              HasSubstr("weight 'model.layers.3.mlp.up_proj.weight', is updated by no optimizer"));
  EXPECT_THAT(Refusal([](v1::Program* p) { Find(kTrained, p)->set_frozen(true); }),
              HasSubstr("FIRST_MOMENT of 'model.layers.0.mlp.up_proj.weight': its initializer says "
                        "that the tensor is frozen"));
  EXPECT_THAT(Refusal([](v1::Program* p) { Find(kFrozen, p)->set_weights(v1::BF16); }),
              HasSubstr("type F32 is not what its initializer says, BF16"));
}

// Not another number that stages sum.
TEST(FrozenTest, OnlyAStageWithoutTrainedWeightsTakesTheSquaresOfOthers) {
  LayoutCase c = {"llama", MatrixLayout()};
  c.layout.set_pipeline_parallel(2);
  v1::Program program = CompileFrozen(c, kLowerHalf).value()[0];
  ASSERT_EQ(CheckProgram(program), absl::OkStatus());
  for (v1::Instruction& instruction : *program.mutable_sequences(0)->mutable_instructions()) {
    if (instruction.compute().op() != "grad_scale") continue;
    instruction.mutable_operands(0)->set_buffer(instruction.operands(1).buffer());
  }
  EXPECT_THAT(std::string(CheckProgram(program).message()),
              HasSubstr("which is no sum of squares"));
}

TEST(FrozenTest, GroupsThatAreRecomputedTogetherBeginWhereSomethingIsTrained) {
  LayoutCase c = {"llama", MatrixLayout()};
  c.layout.set_recompute("full");
  const v1::Program program = CompileFrozen(c, kLowerHalf).value()[0];
  EXPECT_EQ(CheckProgram(program), absl::OkStatus());
  std::set<int> layers;
  Count(program, [&](const v1::Instruction& instruction) {
    if (instruction.phase() == v1::RECOMPUTE) layers.insert(instruction.layer());
    return true;
  });
  EXPECT_EQ(layers, (std::set<int>{2, 3}));
}

// Of the columns of one product queries have gradients, keys and values have none.
TEST(FrozenTest, ANormInsideAttentionMayBeAllThatIsTrained) {
  const Groups groups = {"*", "!*q_norm*"};
  for (const char* kind : {"alone", "zero 3", "pipeline", "tensor", "ring", "ulysses"}) {
    const std::string_view word = kind;
    LayoutCase c = {"qwen3", MatrixLayout()};
    if (word == "zero 3") c.layout.set_zero_stage(3), c.layout.set_data_parallel(2);
    if (word == "pipeline") c.layout.set_pipeline_parallel(2);
    if (word == "tensor") c.layout.set_tensor_parallel(2), c.layout.set_sequence_parallel(true);
    if (word == "ring" || word == "ulysses") c.layout.set_context_parallel(2);
    if (word == "ulysses") c.layout.set_context_type("ulysses");
    const auto programs = CompileFrozen(c, groups);
    ASSERT_EQ(programs.status(), absl::OkStatus()) << kind;
    EXPECT_EQ(CheckPrograms(*programs), absl::OkStatus()) << kind;
  }
}

TEST(FrozenTest, AnUpdateOfAFrozenWeightIsRefused) {
  LayoutCase c = {"llama", MatrixLayout()};
  c.layout.set_optimizer("sgd");
  v1::Program program = CompileFrozen(c, {"*norm*"}).value()[0];
  ASSERT_EQ(CheckProgram(program), absl::OkStatus());
  Find(kTrained, &program)->set_frozen(true);
  EXPECT_THAT(CheckProgram(program).message(),
              HasSubstr("updates 'model.layers.0.mlp.up_proj.weight', which is frozen"));
}

}  // namespace
}  // namespace terrace
