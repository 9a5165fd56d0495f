// Direct preference optimisation: twenty steps follow torch and PEFT, whose first step is TRL's
// (tests/golden/pytorch/make_preference.py), on every kind of layout; and the checker refuses
// programs that compare with something else.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kernels/op.h"
#include "proto/check/program_check.h"
#include "tests/system/layout_kinds.h"
#include "tests/system/recorded_steps.h"

namespace terrace {
namespace {

using Json = nlohmann::ordered_json;

const std::string kFolder = TERRACE_GOLDEN_FOLDER;

Json Recorded(const std::string& recipe) {
  std::ifstream file(kFolder + "/preference.json");
  return Json::parse(file)[recipe];
}

// The golden's model with adapters, on recorded pairs.
JobData PairJob(const Json& recorded, const std::string& family) {
  auto golden = ReadGolden(kFolder + "/" + family);
  EXPECT_TRUE(golden.ok()) << golden.status();
  JobData data = *std::move(golden);
  data.length = recorded["length"];
  data.tokens = recorded["tokens"].get<std::vector<int32_t>>();
  data.targets = recorded["targets"].get<std::vector<int32_t>>();
  data.rows = static_cast<int64_t>(data.tokens.size()) / data.length;
  data.train = TrainOf(recorded);
  const Json& preference = recorded["recipe"]["preference"];
  data.train.mutable_preference()->set_loss("sigmoid");
  data.train.mutable_preference()->set_beta(preference["beta"]);
  data.train.mutable_preference()->set_label_smoothing(preference["label_smoothing"]);
  AddAdapters(LoraOf(recorded["recipe"], family), &data);
  return data;
}

// Of eight rows; a micro-batch is one pair.
v1::Layout PairLayout(const LayoutKind& kind) {
  v1::Layout layout = LayoutOfKind(kind);
  layout.set_micro_batch(2);
  return layout;
}

std::vector<LayoutKind> KindsOfPairs(const std::string& family) {
  const uint32_t heads_over = family == "gpt2" ? 3 : 2;
  return {{.name = "one rank"},
          {.name = "recomputed", .recompute = "block"},
          {.name = "data", .data = 2},
          {.name = "zero 2", .data = 2, .zero = 2},
          {.name = "zero 3", .data = 2, .zero = 3, .recompute = "selective"},
          {.name = "tensor", .tensor = heads_over},
          {.name = "pipeline", .pipeline = 2}};
}

void ExpectNear(const std::vector<double>& got, const std::vector<double>& want,
                const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i)
    EXPECT_NEAR(got[i], want[i], 1e-5 * std::max(1.0, std::abs(want[i]))) << what << ", step " << i;
}

class PreferenceTest : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Recipes, PreferenceTest, testing::Values("plain", "smoothed"),
                         [](const auto& info) { return info.param; });

TEST_P(PreferenceTest, TwentyStepsFollowTorch) {
  const Json recorded = Recorded(GetParam());
  for (const std::string family : {"gpt2", "llama"}) {
    const JobData data = PairJob(recorded, family);
    const Json& expected = recorded[family];
    for (const LayoutKind& kind : KindsOfPairs(family)) {
      const std::string what = absl::StrCat(family, ", ", kind.name);
      const JobResult result =
          TrainLayout(data, PairLayout(kind), data.train.steps(), ThreadsOfOneFamily(family));
      ExpectNear(result.losses, expected["losses"].get<std::vector<double>>(), what + ", losses");
      ExpectNear(result.margins, expected["margins"].get<std::vector<double>>(),
                 what + ", margins");
      EXPECT_EQ(result.accuracies, expected["accuracies"].get<std::vector<double>>()) << what;
    }
  }
}

// Every schedule and all axes at once; of programs whose micro-batches are a loop as well.
TEST(EveryKindTest, PairsTrainAsOnOneRank) {
  JobData data = SmallJob("llama");
  AddAdapters({.rank = 4, .scale = 2, .targets = {"all-linear"}}, &data);
  data.train.mutable_preference()->set_beta(0.5);
  data.train.mutable_preference()->set_loss("sigmoid");
  constexpr int64_t kSteps = 6;
  const auto with_pairs = [](const LayoutKind& kind) {
    v1::Layout layout = LayoutOfKind(kind);
    layout.set_micro_batch(2);
    return layout;
  };
  const JobResult one = TrainLayout(data, with_pairs({}), kSteps, kInTurns);
  ASSERT_EQ(one.losses.size(), static_cast<size_t>(kSteps));
  EXPECT_LT(one.losses.back(), one.losses.front() - 0.05);
  EXPECT_GT(one.margins.back(), one.margins.front());
  for (const LayoutKind& kind : kKinds) {
    if (kind.context > 1) continue;
    const JobResult result = TrainLayout(data, with_pairs(kind), kSteps, kInTurns);
    ExpectNear(result.losses, one.losses, kind.name);
    ExpectNear(result.margins, one.margins, kind.name + ", margins");
  }
  v1::Layout away = with_pairs({});
  away.set_chunk_bytes(4096);
  for (v1::TierShares* shares :
       {away.mutable_offload()->mutable_gradient(), away.mutable_offload()->mutable_activation()})
    shares->set_device(1);
  for (v1::TierShares* shares :
       {away.mutable_offload()->mutable_parameter(), away.mutable_offload()->mutable_optimizer()})
    *shares = v1::TierShares(), shares->set_host(1);
  ExpectNear(TrainLayout(data, away, kSteps, kInTurns).losses, one.losses, "weights on the host");
  // Each layer's codes are decoded once for both passes, on one rank as on two.
  v1::Layout codes = with_pairs({}), codes_on_two = with_pairs({.data = 2, .zero = 3});
  codes.set_frozen_format("nf4");
  codes_on_two.set_frozen_format("nf4");
  ExpectNear(TrainLayout(data, codes_on_two, kSteps, kInTurns).losses,
             TrainLayout(data, codes, kSteps, kInTurns).losses, "weights in codes");
  v1::Layout many = with_pairs({});
  many.set_micro_batches(25);
  RunOptions straight = kInTurns;
  straight.straight = true;
  const JobResult rolled = TrainLayout(data, many, 2, kInTurns);
  EXPECT_EQ(rolled.losses, TrainLayout(data, many, 2, straight).losses);
  ASSERT_EQ(rolled.programs.size(), 1u);
  EXPECT_GT(rolled.programs[0].sequences(0).loops_size(), 0);
}

// ---- what the checker refuses -------------------------------------------------------------------

using Change = std::function<void(v1::Program*)>;

// Instruction `count` of an op in "train".
v1::Instruction* FindOp(kernels::Op op, int count, v1::Program* program) {
  for (v1::Sequence& sequence : *program->mutable_sequences()) {
    if (sequence.name() != "train") continue;
    for (v1::Instruction& instruction : *sequence.mutable_instructions()) {
      if (instruction.has_compute() && instruction.compute().op() == kernels::Name(op) &&
          count-- == 0) {
        return &instruction;
      }
    }
  }
  ADD_FAILURE() << "no such op";
  return nullptr;
}

// Gives operand `operand` of one op the memory of an operand of another.
Change Replaced(kernels::Op op, int at, int operand, int from_at, int from_operand) {
  return [=](v1::Program* program) {
    const v1::Operand from =
        FindOp(kernels::Op::kPreferenceLoss, from_at, program)->operands(from_operand);
    v1::Operand* to = FindOp(op, at, program)->mutable_operands(operand);
    to->set_buffer(from.buffer());
    to->set_offset(from.offset());
  };
}

TEST(CheckTest, WhatComparesWithSomethingElseIsRefused) {
  using kernels::Op;
  constexpr int kOwn = 0, kReference = 1, kWeights = 2;
  const JobData data = PairJob(Recorded("plain"), "llama");
  v1::Layout layout = PairLayout({});
  layout.set_threads_per_rank(1);
  // Buffers of their own, so that no mutant is refused for memory that was used again.
  layout.set_allocator("caching");
  const auto programs = CompileJob(data, layout);
  ASSERT_TRUE(programs.ok()) << programs.status();
  ASSERT_TRUE(CheckPrograms(*programs).ok()) << CheckPrograms(*programs);
  const struct {
    const char* name;
    Change change;
    const char* why;
  } mutants[] = {
      {"a reference that is trained", Replaced(Op::kPreferenceLoss, 0, kReference, 0, kOwn),
       "takes for its reference what trained weights have changed"},
      {"no trained weight", Replaced(Op::kPreferenceLoss, 0, kOwn, 0, kReference),
       "compares losses that no trained weight changes"},
      {"the reference of another micro-batch",
       Replaced(Op::kPreferenceLoss, 1, kReference, 0, kReference), "several micro-batches"},
      {"weights that are losses", Replaced(Op::kLmHeadLossGrad, 0, 7, 0, kOwn),
       "weighs tokens by what no preference_loss made"},
      {"weights of another micro-batch", Replaced(Op::kLmHeadLossGrad, 1, 7, 0, kWeights),
       "several micro-batches"},
      {"no weights",
       [](v1::Program* program) {
         FindOp(Op::kLmHeadLossGrad, 0, program)->mutable_operands(7)->Clear();
       },
       "has no weights"},
      {"a loss of tokens",
       [](v1::Program* program) {
         for (int at = 0; at < static_cast<int>(program->rules().micro_batches()); ++at) {
           std::swap(*FindOp(Op::kLmHeadLossGrad, at, program)->mutable_operands(3),
                     *FindOp(Op::kPreferenceLoss, at, program)->mutable_operands(3));
         }
       },
       "no loss of pairs"},
      {"rules without pairs", [](v1::Program* program) { program->mutable_rules()->clear_pairs(); },
       "which rules.pairs does not say"},
  };
  for (const auto& mutant : mutants) {
    std::vector<v1::Program> changed = *programs;
    mutant.change(&changed[0]);
    const absl::Status status = CheckPrograms(changed);
    EXPECT_FALSE(status.ok()) << mutant.name;
    EXPECT_TRUE(absl::StrContains(status.message(), mutant.why)) << mutant.name << ": " << status;
  }
}

// The stage behind takes what came first for the model's, and what came second for the reference's.
TEST(CheckTest, AStageThatSendsTheModelForItsReferenceIsRefused) {
  const JobData data = PairJob(Recorded("plain"), "llama");
  v1::Layout layout = PairLayout({.pipeline = 2});
  layout.set_threads_per_rank(1);
  auto programs = CompileJob(data, layout);
  ASSERT_TRUE(programs.ok()) << programs.status();
  std::vector<v1::Instruction*> sends;
  for (v1::Instruction& instruction :
       *(*programs)[0].mutable_sequences(0)->mutable_instructions()) {
    if (instruction.has_transfer() && instruction.transfer().kind() == v1::SEND)
      sends.push_back(&instruction);
  }
  ASSERT_GE(sends.size(), 2u);
  *sends[1]->mutable_operands(0) = sends[0]->operands(0);
  const absl::Status status = CheckPrograms(*programs);
  EXPECT_TRUE(absl::StrContains(status.message(), "takes for the reference of its pairs"))
      << status;
}

}  // namespace
}  // namespace terrace
