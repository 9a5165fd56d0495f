// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/compile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/model/presets.h"
#include "proto/check/program_check.h"
#include "proto/program/grid.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(CompileTest, EveryFamilyAndLayoutPassesTheChecker) {
  for (const TinyJob& job : TinyJobs()) {
    const v1::Program program = CompileTiny(job);
    EXPECT_EQ(CheckPrograms({program}), absl::OkStatus()) << Describe(job);
  }
}

TEST(CompileTest, ProgramsThatGeneratePassTheCheckerAndHoldWeightsOnly) {
  for (const std::string& family : Families()) {
    const Model model = TinyModel(family);
    InferInput input = {.model = &model, .job = "tiny", .threads = 2};
    input.precisions.set_precision("bf16");
    const auto program =
        CompileGenerate(input, {.max_length = 12, .prefill_tokens = 5, .score_tokens = 3});
    ASSERT_TRUE(program.ok()) << program.status();
    EXPECT_EQ(CheckProgram(*program), absl::OkStatus()) << family;
    ASSERT_EQ(program->sequences_size(), 3);
    EXPECT_EQ(program->sequences(0).name(), "prefill");
    EXPECT_EQ(program->sequences(1).name(), "decode");
    EXPECT_EQ(program->sequences(2).name(), "score");
    EXPECT_EQ(program->state_size(), static_cast<int>(model.tensors.size()));
    for (const v1::StateRange& range : program->state()) EXPECT_EQ(range.kind(), v1::WEIGHT);
  }
}

TEST(CompileTest, TheSameInputGivesTheSameBytes) {
  for (const TinyJob& job : TinyJobs()) {
    EXPECT_EQ(CompileTiny(job).SerializeAsString(), CompileTiny(job).SerializeAsString())
        << Describe(job);
  }
}

TEST(CompileTest, LayoutsItCannotCompileAreRefusedByName) {
  const v1::JobSpec spec = TinySpec();
  const Model model = TinyModel("llama");
  const auto refusal = [&](auto change) {
    v1::Layout layout = TinyLayout({});
    change(layout);
    const auto programs = Compile({.spec = &spec, .model = &model, .layout = layout});
    EXPECT_EQ(programs.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(programs.status().message());
  };
  EXPECT_THAT(refusal([](v1::Layout& l) { l.set_tensor_parallel(3); }),
              HasSubstr("layout.tp: got 3"));
  EXPECT_THAT(refusal([](v1::Layout& l) { l.set_pipeline_parallel(4); }),
              HasSubstr("layout.pp: got 4"));
  EXPECT_THAT(refusal([](v1::Layout& l) { l.set_context_parallel(5); }),
              HasSubstr("layout.cp: got 5"));
  EXPECT_THAT(refusal([](v1::Layout& l) {
                l.set_data_parallel(2);
                l.set_zero_stage(4);
              }),
              HasSubstr("layout.zero: got 4"));
  EXPECT_THAT(refusal([](v1::Layout& l) { l.set_recompute("some"); }),
              HasSubstr("layout.recompute: got 'some'"));
  EXPECT_THAT(refusal([](v1::Layout& l) { l.set_precision("fp4"); }),
              HasSubstr("train.precision: got 'fp4'"));
  EXPECT_THAT(refusal([](v1::Layout& l) { l.set_micro_batches(0); }), HasSubstr("micro_batches 0"));
}

std::string Refusal(const TinyJob& job) {
  const v1::JobSpec spec = TinySpec();
  const Model model = TinyModel(job.family, job.sizes);
  const auto programs =
      Compile({.spec = &spec, .model = &model, .layout = TinyLayout(job), .straight = true});
  EXPECT_EQ(programs.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(programs.status().message());
}

TEST(CompileTest, StepsTooLongToUnrollAreRefused) {
  EXPECT_THAT(Refusal({.micro_batches = 40'000}),
              HasSubstr("80000 layer passes in one step of a stage, must be at most 65536; raise "
                        "layout.micro_batch"));
  EXPECT_THAT(Refusal({.micro_batches = 40'000, .pipeline_parallel = 2, .sizes = {.layers = 4}}),
              HasSubstr("80000 layer passes"));
}

// What the checker would refuse is refused with a way out.
TEST(CompileTest, StepsOfTooManyBuffersAreRefused) {
  EXPECT_THAT(Refusal({.micro_batches = 18'000}),
              HasSubstr(" buffers in one step of a stage, must be at most 1000000"));
}

TEST(CompileTest, RulesCountTokensOverAllRanks) {
  const v1::Program program = CompileTiny({.data_parallel = 4, .micro_batches = 3});
  EXPECT_EQ(program.rules().tokens_per_step(), 4 * 3 * 2 * 12);
  EXPECT_EQ(program.rules().micro_batches(), 3u);
  EXPECT_EQ(program.ranks(), 4u);
  ASSERT_GE(program.groups_size(), 1);
  EXPECT_EQ(program.groups(0).name(), "data");
  EXPECT_EQ(GroupSize(program.grid(), program.groups(0)), 4u);
}

// The same program, buffers and offsets included; attention stays in fp32.
TEST(CompileTest, Tf32ChangesProductsAlone) {
  for (const std::string& family : Families()) {
    const v1::Program f32 = CompileTiny({.family = family, .precision = "fp32"});
    v1::Program tf32 = CompileTiny({.family = family, .precision = "tf32"});
    int products = 0;
    const auto take_back = [&products](auto* attrs) {
      if (attrs->precision() != v1::MATMUL_TF32) return;
      attrs->clear_precision();
      ++products;
    };
    for (v1::Sequence& sequence : *tf32.mutable_sequences()) {
      for (v1::Instruction& instruction : *sequence.mutable_instructions()) {
        if (!instruction.has_compute()) continue;
        v1::ComputeOp* compute = instruction.mutable_compute();
        if (compute->has_matmul()) take_back(compute->mutable_matmul());
        if (compute->has_loss()) take_back(compute->mutable_loss());
      }
    }
    EXPECT_GT(products, 0) << family;
    for (int i = 0; i < f32.sequences_size(); ++i) {
      EXPECT_EQ(tf32.sequences(i).SerializeAsString(), f32.sequences(i).SerializeAsString())
          << family << " " << f32.sequences(i).name();
    }
    ASSERT_EQ(tf32.arenas_size(), f32.arenas_size());
    EXPECT_EQ(tf32.arenas(0).bytes(), f32.arenas(0).bytes());
  }
}

// Whoever makes the gradient of the loss multiplies, grad_scale divides; a program in which one of
// them does not is refused.
TEST(CompileTest, Fp16ScalesTheLossAndNobodyIsLeftOut) {
  for (const std::string& family : Families()) {
    EXPECT_FALSE(CompileTiny({.family = family, .precision = "bf16"}).rules().has_loss_scale());
    const v1::Program program =
        CompileTiny({.family = family, .precision = "fp16", .micro_batches = 2});
    EXPECT_EQ(program.rules().loss_scale().window(), 1000);
    int scaled = 0;
    for (int s = 0; s < program.sequences_size(); ++s) {
      for (int i = 0; i < program.sequences(s).instructions_size(); ++i) {
        const v1::Instruction& instruction = program.sequences(s).instructions(i);
        const std::string& op = instruction.compute().op();
        if (op != "lm_head_loss_grad" && op != "grad_scale") continue;
        ++scaled;
        v1::Program broken = program;
        v1::Instruction* changed = broken.mutable_sequences(s)->mutable_instructions(i);
        const int schedule = op == "grad_scale" ? 3 : 6;
        ASSERT_NE(instruction.operands(schedule).access(), v1::ACCESS_UNSPECIFIED);
        changed->mutable_operands(schedule)->Clear();
        EXPECT_THAT(std::string(CheckProgram(broken).message()),
                    testing::HasSubstr("the schedule, is absent"))
            << family << " " << op;
      }
    }
    EXPECT_EQ(scaled, 3) << "two micro-batches and the scale of the gradient";
    v1::Program unruled = program;
    unruled.mutable_rules()->clear_loss_scale();
    EXPECT_FALSE(CheckProgram(unruled).ok()) << family;
  }
}

// The products of linear layers, the gradient among their operands marked; nothing else.
TEST(CompileTest, Fp8ChangesTheProductsOfLinearLayersAlone) {
  for (const std::string& family : Families()) {
    const v1::Program bf16 = CompileTiny({.family = family, .precision = "bf16"});
    const v1::Program fp8 = CompileTiny({.family = family, .precision = "fp8"});
    int forward = 0, of_a = 0, of_b = 0;
    ASSERT_EQ(bf16.sequences_size(), fp8.sequences_size());
    for (int s = 0; s < fp8.sequences_size(); ++s) {
      ASSERT_EQ(bf16.sequences(s).instructions_size(), fp8.sequences(s).instructions_size());
      for (int i = 0; i < fp8.sequences(s).instructions_size(); ++i) {
        const v1::Instruction& now = fp8.sequences(s).instructions(i);
        const v1::Instruction& before = bf16.sequences(s).instructions(i);
        EXPECT_EQ(now.text(), before.text());
        if (now.compute().matmul().precision() != v1::MATMUL_FP8) continue;
        const v1::Fp8Gradient gradient = now.compute().matmul().gradient();
        forward += gradient == v1::FP8_GRADIENT_NONE && fp8.sequences(s).name() == "train";
        of_a += gradient == v1::FP8_GRADIENT_A;
        of_b += gradient == v1::FP8_GRADIENT_B;
        EXPECT_THAT(now.text(), Not(HasSubstr("lm_head")));
        const bool backward = now.text().ends_with(" dx") || now.text().ends_with(" dweight");
        EXPECT_EQ(gradient != v1::FP8_GRADIENT_NONE, backward) << now.text();
        EXPECT_EQ(before.compute().matmul().precision(), v1::MATMUL_BF16) << now.text();
      }
    }
    EXPECT_GT(forward, 0) << family;
    EXPECT_GT(of_a, 0) << family;
    EXPECT_EQ(of_a + of_b, 2 * forward) << family << ": every layer has two gradients";
  }
}

// Weights, gradients and optimizer state of GPT-2 124M are 1.991 GB; activations live while
// gradients do not.
TEST(CompileTest, Gpt2NeedsLittleMoreThanItsStates) {
  const auto config = ParseModelConfig(FindPreset("gpt2")->config_json, 512);
  ASSERT_TRUE(config.ok()) << config.status();
  const Model model = BuildModel(*config);
  v1::JobSpec spec = TinySpec();
  spec.mutable_data()->set_sequence_length(512);
  const v1::Layout layout = TinyLayout({.precision = "bf16", .bucket_bytes = int64_t{25} << 20});
  const auto programs = Compile({.spec = &spec, .model = &model, .layout = layout});
  ASSERT_TRUE(programs.ok()) << programs.status();
  const int64_t states = 16 * model.Parameters();
  EXPECT_GE(programs->at(0).arenas(0).bytes(), states);
  EXPECT_LE(programs->at(0).arenas(0).bytes(), states + 60'000'000);
}

}  // namespace
}  // namespace terrace
