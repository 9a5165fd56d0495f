// What DeepSpeed reads besides the plain form: Hjson, old names, strings for switches, "auto",
// null; and what it refuses.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/deepspeed_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "coordinator/import/deepspeed.h"
#include "coordinator/spec/job_spec.h"

namespace terrace {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

SpecDraft Import(std::string_view json) {
  auto draft = ImportDeepSpeed(json, {.model = "gpt2", .train = "corpus.txt"});
  EXPECT_TRUE(draft.ok()) << draft.status();
  if (!draft.ok()) return SpecDraft();
  EXPECT_TRUE(ParseJobSpec(draft->Yaml(), "/tmp").ok()) << draft->Yaml();
  return *std::move(draft);
}
std::string Refusal(std::string_view json) {
  const auto draft = ImportDeepSpeed(json, {});
  EXPECT_FALSE(draft.ok()) << json;
  return std::string(draft.status().message());
}
ImportedSetting Of(const SpecDraft& draft, std::string_view name) {
  for (const ImportedSetting& setting : draft.settings()) {
    if (setting.setting == name) return setting;
  }
  ADD_FAILURE() << name;
  return {};
}

TEST(DeepSpeedValuesTest, CommentsAndTrailingCommasAreRead) {
  const SpecDraft draft = Import(R"({
  # batch for one box
  "train_batch_size": 8, /* c */ "zero_optimization": {"stage": 2,},
})");
  EXPECT_EQ(draft.Get("train.global_batch"), "8");
  EXPECT_EQ(draft.Get("layout.zero"), "2");
}

TEST(DeepSpeedValuesTest, SwitchesAreWhatPydanticMakesOfThem) {
  for (const char* on : {"true", "1", "\"true\"", "\"True\"", "\"on\"", "\"yes\"", "\"1\""}) {
    const auto value = nlohmann::json::parse(on);
    EXPECT_EQ(BoolOf(value), true) << on;
    EXPECT_EQ(Import(R"({"bf16":{"enabled":)" + value.dump() + "}}").Get("train.precision"),
              "bf16");
  }
  for (const char* off : {"false", "0", "\"FALSE\"", "\"off\"", "\"n\""})
    EXPECT_EQ(BoolOf(nlohmann::json::parse(off)), false) << off;
  EXPECT_EQ(BoolOf("maybe"), std::nullopt);
  EXPECT_EQ(BoolOf(2), std::nullopt);
  EXPECT_THAT(Refusal(R"({"bf16": {"enabled": "maybe"}})"),
              HasSubstr("bf16.enabled: got \"maybe\", must be true, false or \"auto\""));
  EXPECT_THAT(Refusal(R"({"zero_optimization": {"cpu_offload": "maybe"}})"),
              HasSubstr("zero_optimization.cpu_offload: got \"maybe\", must be true or false"));
  EXPECT_EQ(Import(R"({"zero_optimization":{"stage":"3"}})").Get("layout.zero"), "3");
}

TEST(DeepSpeedValuesTest, ASectionThatIsNoObjectIsRefusedWithOneThatIs) {
  EXPECT_THAT(
      Refusal(R"({"bf16": true})"),
      HasSubstr(
          R"(bf16: got true, must be an object, as DeepSpeed demands; try {"enabled": true})"));
  EXPECT_THAT(Refusal(R"({"fp16": "yes"})"), HasSubstr("fp16: got \"yes\", must be an object"));
  EXPECT_THAT(Refusal(R"({"optimizer": "AdamW"})"), HasSubstr(R"(try {"type": "AdamW")"));
  EXPECT_THAT(Refusal(R"({"scheduler": ["WarmupLR"]})"), HasSubstr("scheduler: got"));
  EXPECT_THAT(Refusal(R"({"zero_optimization": {"offload_optimizer": "cpu"}})"),
              HasSubstr(R"(try {"device": "cpu"})"));
  EXPECT_EQ(Import(R"({"bf16": false, "fp16": null})").Get("train.precision"), "fp32");
}

TEST(DeepSpeedValuesTest, ADegreeBeyondAnyClusterIsLeftToTheSpecToRefuse) {
  const auto draft = ImportDeepSpeed(R"({"sequence_parallel_size": 18446744073709551615,
                                         "tensor_parallel": {"autotp_size": 9223372036854775807}})",
                                     {.model = "gpt2", .train = "corpus.txt"});
  ASSERT_TRUE(draft.ok()) << draft.status();
  EXPECT_THAT(std::string(ParseJobSpec(draft->Yaml(), "/tmp").status().message()),
              HasSubstr("layout.cp: got"));
}

TEST(DeepSpeedValuesTest, ABatchThatNoNumberOfRanksMakesIsRefused) {
  EXPECT_THAT(Refusal(R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4,
                          "gradient_accumulation_steps": 3})"),
              HasSubstr("train_batch_size: got 8, must be a multiple of 12"));
  EXPECT_THAT(Refusal(R"({"train_batch_size": 6, "train_micro_batch_size_per_gpu": 4})"),
              HasSubstr("must be a multiple of 4"));
  EXPECT_EQ(Import(R"({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 4,
                       "gradient_accumulation_steps": 3})")
                .Get("train.global_batch"),
            "24");
}

TEST(DeepSpeedValuesTest, OldNamesOfOffloadAreRead) {
  const SpecDraft draft = Import(R"({"train_batch_size":8,"zero_optimization":
      {"stage":3,"cpu_offload":true,"cpu_offload_param":true,"cpu_offload_use_pin_memory":true}})");
  EXPECT_EQ(draft.Get("layout.offload.optimizer"), "host");
  EXPECT_EQ(draft.Get("layout.offload.parameter"), "host");
  EXPECT_EQ(Of(draft, "zero_optimization.cpu_offload_use_pin_memory").fate, Fate::kAutomatic);
  EXPECT_EQ(
      Of(Import(R"({"zero_optimization":{"cpu_offload":false}})"), "zero_optimization.cpu_offload")
          .fate,
      Fate::kAutomatic);
  EXPECT_THAT(Refusal(R"({"zero_optimization":{"cpu_offload_param":true,
                          "offload_param":{"device":"cpu"}}})"),
              HasSubstr("leave the old name cpu_offload_param out"));
}

TEST(DeepSpeedValuesTest, ZeroAsASwitchIsStageOne) {
  const SpecDraft draft = Import(R"({"zero_optimization": true, "allgather_size": 5e8})");
  EXPECT_EQ(draft.Get("layout.zero"), "1");
  EXPECT_EQ(Of(draft, "allgather_size").fate, Fate::kAutomatic);
  EXPECT_EQ(Import(R"({"zero_optimization": false})").Get("layout.zero"), "0");
  EXPECT_THAT(Refusal(R"({"zero_optimization": 3.5})"), HasSubstr("an object with a stage"));
}

TEST(DeepSpeedValuesTest, NamesWithoutStage3AreRead) {
  EXPECT_EQ(Import(R"({"zero_optimization":{"stage":3,"param_persistence_threshold":1e4}})")
                .Get("layout.persistent_parameters"),
            "10000");
}

TEST(DeepSpeedValuesTest, PrecisionLeftToTheTrainerIsUndecidedAndSaid) {
  const SpecDraft draft = Import(R"({"fp16":{"enabled":"auto","loss_scale_window":500},
                                     "bf16":{"enabled":"auto"}})");
  EXPECT_FALSE(draft.Has("train.precision"));
  EXPECT_FALSE(draft.Has("train.loss_scale"));
  EXPECT_THAT(draft.remarks(), Contains(HasSubstr("train.precision is undecided")));
  EXPECT_THAT(Of(draft, "fp16.loss_scale_window").note, HasSubstr("undecided"));
  const SpecDraft half = Import(R"({"fp16":{"enabled":"auto"},"bf16":{"enabled":false}})");
  EXPECT_FALSE(half.Has("train.precision"));
  EXPECT_EQ(Import(R"({"fp16":{"enabled":"auto"},"bf16":{"enabled":true}})").Get("train.precision"),
            "bf16");
  EXPECT_EQ(Import(R"({"fp16":{"enabled":false}})").Get("train.precision"), "fp32");
}

// The default of a job spec, bf16, sends gradients as bf16 too.
TEST(DeepSpeedValuesTest, AnUndecidedPrecisionKeepsTheTypeOfCommunication) {
  const SpecDraft draft = Import(R"({"bf16":{"enabled":"auto"},"communication_data_type":"BF16"})");
  EXPECT_EQ(draft.Get("formats.reduce"), "bf16");
  EXPECT_THAT(Refusal(R"({"communication_data_type":"fp8"})"), HasSubstr("must be \"fp32\""));
}

TEST(DeepSpeedValuesTest, GradientsAccumulateInTheTypeThatIsAskedFor) {
  const auto import = [](const char* types) {
    return Import(
        absl::StrCat(R"({"bf16":{"enabled":true},"data_types":{"grad_accum_dtype":)", types, "}"));
  };
  const SpecDraft bf16 = import(R"("bf16"})");
  EXPECT_EQ(bf16.Get("formats.gradient"), "bf16");
  EXPECT_EQ(import(R"("fp32"})").Get("formats.gradient"), "f32");
  EXPECT_THAT(Of(import(R"("fp16"})"), "data_types.grad_accum_dtype").note,
              HasSubstr("bf16 has the same size"));
  const SpecDraft sent = import(R"("bf16"},"communication_data_type":"fp32")");
  EXPECT_EQ(sent.Get("formats.reduce"), "bf16") << "what is rounded is not sent longer";
  EXPECT_EQ(Import(R"({"data_types":{"grad_accum_dtype":"bf16"}})").Get("formats.gradient"), "f32")
      << "as those of fp32 training are";
}

TEST(DeepSpeedValuesTest, WeightsThatRestOffTheDeviceBeforeStage3AreSaid) {
  const SpecDraft draft =
      Import(R"({"zero_optimization":{"stage":2,"offload_param":{"device":"cpu"}}})");
  EXPECT_THAT(Of(draft, "zero_optimization.offload_param.device").note, HasSubstr("stage 3 only"));
}

TEST(DeepSpeedValuesTest, TwoPrecisionsAreRefused) {
  EXPECT_THAT(Refusal(R"({"fp16":{"enabled":true},"bf16":{"enabled":true}})"),
              HasSubstr("bf16.enabled: got true beside fp16.enabled: true"));
  EXPECT_THAT(Refusal(R"({"fp16":{"enabled":"true"},"bfloat16":{"enabled":1}})"),
              HasSubstr("bfloat16.enabled"));
}

TEST(DeepSpeedValuesTest, TheNewNameOfBf16CountsBeforeTheOld) {
  EXPECT_EQ(
      Import(R"({"bf16":{"enabled":false},"bfloat16":{"enabled":true}})").Get("train.precision"),
      "fp32");
  EXPECT_EQ(Import(R"({"bfloat16":{"enabled":true}})").Get("train.precision"), "bf16");
  EXPECT_EQ(
      Import(R"({"torch_autocast":{"enabled":true,"dtype":"bfloat16"}})").Get("train.precision"),
      "bf16");
}

TEST(DeepSpeedValuesTest, TwoDrivesAreBothKept) {
  const SpecDraft draft = Import(R"({"zero_optimization":{"stage":3,
      "offload_optimizer":{"device":"nvme","nvme_path":"/a"},
      "offload_param":{"device":"nvme","nvme_path":"/b"}}})");
  EXPECT_EQ(draft.Get("resources.nvme.paths"), "[/a, /b]");
  const SpecDraft one = Import(R"({"zero_optimization":{"stage":3,
      "offload_optimizer":{"device":"nvme","nvme_path":"/a"},
      "offload_param":{"device":"cpu","nvme_path":"/b"}}})");
  EXPECT_EQ(one.Get("resources.nvme.paths"), "/a");
  EXPECT_EQ(Of(one, "zero_optimization.offload_param.nvme_path").fate, Fate::kAutomatic);
}

TEST(DeepSpeedValuesTest, KeysThatCirculateGetTheSentenceThatHelps) {
  for (const char* json :
       {R"({"nvme_offload":{"path":"/n"}})",
        R"({"zero_optimization":{"nvme_offload":{"path":"/n","enabled":true}}})"}) {
    const SpecDraft draft = Import(json);
    ASSERT_THAT(draft.settings(), Not(IsEmpty()));
    for (const ImportedSetting& setting : draft.settings()) {
      EXPECT_EQ(setting.fate, Fate::kUnknown) << setting.setting;
      EXPECT_THAT(setting.note, HasSubstr("resources.nvme.paths"));
    }
  }
  for (const char* json :
       {R"({"offload_optim_frac":0.5})", R"({"zero_optimization":{"offload_optim_frac":0.5}})",
        R"({"zero_optimization":{"offload_optimizer":{"offload_optim_frac":0.5}}})"}) {
    EXPECT_THAT(Import(json).settings()[0].note, HasSubstr("{device: 0.5, host: 0.5}")) << json;
  }
}

TEST(DeepSpeedValuesTest, AutoOfAKeyThatIsNoneIsNoAutomatic) {
  const SpecDraft draft = Import(R"({"zero_optimization":{"stagee":"auto"}})");
  EXPECT_EQ(Of(draft, "zero_optimization.stagee").fate, Fate::kUnknown);
}

TEST(DeepSpeedValuesTest, SectionsThatAreOffAreNotMissed) {
  const SpecDraft draft = Import(R"({"zero_optimization":{"stage":2,"offload_optimizer":null},
      "amp":{"enabled":false,"opt_level":"O1"},"sparse_gradients":false,"scheduler":null})");
  for (const ImportedSetting& setting : draft.settings()) {
    if (setting.setting == "zero_optimization.stage") continue;
    EXPECT_EQ(setting.fate, Fate::kAutomatic) << setting.setting << ": " << setting.note;
  }
}

// DeepSpeed's numbers where the configuration has none; those of a job spec are others.
TEST(DeepSpeedValuesTest, NumbersLeftOutAreDeepSpeeds) {
  const SpecDraft draft = Import(R"({"optimizer":{"type":"AdamW","params":{"lr":"auto"}}})");
  EXPECT_FALSE(draft.Has("train.optimizer.lr"));
  EXPECT_EQ(draft.Get("train.optimizer.betas"), "[0.9, 0.999]");
  EXPECT_EQ(draft.Get("train.optimizer.weight_decay"), "0");
  EXPECT_EQ(draft.Get("train.clip_grad_norm"), "0");
  EXPECT_THAT(draft.remarks(), Contains(HasSubstr("the configuration has no scheduler")));
  EXPECT_FALSE(Import(R"({"gradient_clipping":"auto"})").Has("train.clip_grad_norm"));
}

TEST(DeepSpeedValuesTest, WhatMakesAnotherOptimizerOrScheduleIsSaid) {
  const SpecDraft draft = Import(R"({"optimizer":{"type":"Adam","params":{"lr":1e-3,
      "adam_w_mode":false,"bias_correction":false}},
      "scheduler":{"type":"WarmupDecayLR","params":{"warmup_max_lr":2e-3,"warmup_min_lr":1e-5}}})");
  EXPECT_EQ(Of(draft, "optimizer.params.adam_w_mode").fate, Fate::kAutomatic);
  EXPECT_EQ(draft.Get("train.optimizer.name"), "adam");
  EXPECT_EQ(Of(draft, "optimizer.params.bias_correction").fate, Fate::kAbsent);
  EXPECT_THAT(Of(draft, "scheduler.type").note, HasSubstr("logarithmic in DeepSpeed"));
  EXPECT_EQ(draft.Get("train.schedule.min_lr"), "1e-05");
  EXPECT_EQ(draft.Get("train.schedule.initial_lr"), "1e-05");
  EXPECT_EQ(draft.Get("train.optimizer.lr"), "0.002");
  EXPECT_EQ(draft.Get("train.schedule.warmup_steps"), "1000");
  EXPECT_EQ(Of(Import(R"({"gradient_allreduce_op":"sum"})"), "gradient_allreduce_op").fate,
            Fate::kAbsent);
}

// DeepSpeed takes the key from both, and heeds it with Adam alone.
TEST(DeepSpeedValuesTest, TheDecayOfAdamWIsDecoupledWhateverAdamWModeSays) {
  const SpecDraft draft =
      Import(R"({"optimizer":{"type":"AdamW","params":{"lr":1e-3,"adam_w_mode":false}}})");
  EXPECT_EQ(draft.Get("train.optimizer.name"), "adamw");
  EXPECT_THAT(Of(draft, "optimizer.params.adam_w_mode").note, HasSubstr("without effect"));
}

TEST(DeepSpeedValuesTest, LionAndSgdBringTheirOwnNumbers) {
  const SpecDraft lion = Import(R"({"optimizer":{"type":"Lion","params":{"lr":1e-4}}})");
  EXPECT_EQ(lion.Get("train.optimizer.name"), "lion");
  EXPECT_EQ(lion.Get("train.optimizer.betas"), "[0.9, 0.99]");
  EXPECT_FALSE(lion.Has("train.optimizer.epsilon"));
  const SpecDraft sgd = Import(R"({"optimizer":{"type":"SGD","params":
      {"lr":0.1,"momentum":0.9,"nesterov":true,"dampening":0.1}}})");
  EXPECT_EQ(sgd.Get("train.optimizer.name"), "sgd");
  EXPECT_EQ(sgd.Get("train.optimizer.momentum"), "0.9");
  EXPECT_EQ(sgd.Get("train.optimizer.nesterov"), "true");
  EXPECT_EQ(sgd.Get("train.optimizer.weight_decay"), "0");
  EXPECT_FALSE(sgd.Has("train.optimizer.betas"));
  EXPECT_EQ(Of(sgd, "optimizer.params.dampening").fate, Fate::kAbsent);
}

TEST(DeepSpeedValuesTest, AdafactorBringsItsNumbersAndIsNotCut) {
  const SpecDraft draft = Import(R"({"optimizer":{"type":"Adafactor","params":
      {"beta2_decay":-0.7,"eps":[1e-30,0.01],"d":2.0}},"zero_optimization":{"stage":2}})");
  EXPECT_EQ(draft.Get("train.optimizer.name"), "adafactor");
  EXPECT_EQ(draft.Get("train.optimizer.beta2_decay"), "-0.7");
  EXPECT_EQ(draft.Get("train.optimizer.least_scale"), "0.01");
  EXPECT_EQ(draft.Get("train.optimizer.clip_threshold"), "2.0");
  EXPECT_EQ(draft.Get("train.optimizer.lr"), "1e-2");
  EXPECT_FALSE(draft.Has("train.optimizer.epsilon"));
  EXPECT_EQ(draft.Get("layout.zero"), "2");
  for (const char* type : {"Adafactor", "Muon"}) {
    const SpecDraft third = Import(R"({"optimizer":{"type":")" + std::string(type) +
                                   R"("},"zero_optimization":{"stage":3}})");
    EXPECT_EQ(third.Get("layout.zero"), "2") << type;
    EXPECT_THAT(Of(third, "zero_optimization.stage").note, HasSubstr("which ZeRO 3 would cut"));
  }
}

TEST(DeepSpeedValuesTest, EightBitAdamAndStatesInBf16AreFormatsOfMoments) {
  for (const char* type : {"Adam8bit", "AdamW8bit", "adamw_bnb_8bit", "paged_adamw_8bit"}) {
    const SpecDraft draft = Import(R"({"optimizer":{"type":")" + std::string(type) + R"("}})");
    EXPECT_EQ(draft.Get("train.optimizer.name"), "adamw") << type;
    EXPECT_EQ(draft.Get("formats.moments"), "int8") << type;
    EXPECT_THAT(Of(draft, "optimizer.type").note, HasSubstr("bitsandbytes"));
  }
  const SpecDraft other = Import(R"({"optimizer":{"type":"OneBitAdam"}})");
  EXPECT_EQ(Of(other, "optimizer.type").fate, Fate::kAbsent);
  EXPECT_FALSE(other.Has("formats.moments"));
  EXPECT_EQ(
      Import(R"({"bf16":{"enabled":true,"bf16_optimizer_states":true}})").Get("formats.moments"),
      "bf16");
  EXPECT_FALSE(
      Import(R"({"bf16":{"enabled":true,"bf16_optimizer_states":false}})").Has("formats.moments"));
}

TEST(DeepSpeedValuesTest, QuantizedWeightsAreGatheredInBlocks) {
  const auto with = [](int stage, const char* on) {
    return Import(absl::StrCat(R"({"bf16":{"enabled":true},"zero_optimization":{"stage":)", stage,
                               R"(,"zero_quantized_weights":)", on, "}}"));
  };
  EXPECT_EQ(with(3, "true").Get("formats.gather"), "int8");
  EXPECT_FALSE(with(3, "false").Has("formats.gather"));
  const SpecDraft in_f32 =
      Import(R"({"zero_optimization":{"stage":3,"zero_quantized_weights":true}})");
  EXPECT_FALSE(in_f32.Has("formats.gather"));
  EXPECT_EQ(Of(in_f32, "zero_optimization.zero_quantized_weights").fate, Fate::kAbsent);
  const SpecDraft early = with(2, "true");
  EXPECT_FALSE(early.Has("formats.gather"));
  EXPECT_EQ(Of(early, "zero_optimization.zero_quantized_weights").fate, Fate::kAbsent);
}

TEST(DeepSpeedValuesTest, QuantizedGradientsAreSentInBlocks) {
  const auto with = [](int stage, const char* on) {
    return Import(absl::StrCat(R"({"bf16":{"enabled":true},"zero_optimization":{"stage":)", stage,
                               R"(,"zero_quantized_gradients":)", on, "}}"));
  };
  for (const int stage : {1, 2, 3}) EXPECT_EQ(with(stage, "true").Get("formats.reduce"), "int4");
  EXPECT_NE(with(3, "false").Get("formats.reduce"), "int4");
  const SpecDraft whole = with(0, "true");
  EXPECT_NE(whole.Get("formats.reduce"), "int4");
  EXPECT_EQ(Of(whole, "zero_optimization.zero_quantized_gradients").fate, Fate::kAbsent);
}

TEST(DeepSpeedValuesTest, WhatQuantizedGradientsLoseIsKept) {
  const auto with = [](const char* quantized, const char* more) {
    return Import(absl::StrCat(R"({"bf16":{"enabled":true},"zero_optimization":{"stage":2,)",
                               R"("zero_quantized_gradients":)", quantized, more,
                               R"(,"zeropp_loco_param":{"err_beta":0.8,"reset_T":1024}}})"));
  };
  EXPECT_EQ(with("true", "").Get("formats.residual"), "bf16");
  EXPECT_EQ(Of(with("true", ""), "zero_optimization.zeropp_loco_param.reset_T").fate,
            Fate::kAbsent);
  EXPECT_FALSE(with("false", "").Has("formats.residual"));
  EXPECT_FALSE(with("true", R"(,"zero_hpz_partition_size":2)").Has("formats.residual"));
}

TEST(DeepSpeedValuesTest, ABatchThatIsNoNumberIsRefused) {
  EXPECT_THAT(Refusal(R"({"train_batch_size":"8"})"), HasSubstr("must be a number"));
  EXPECT_THAT(Refusal("\xff{}"), HasSubstr("UTF-8"));
  EXPECT_THAT(Refusal("  "), HasSubstr("is empty"));
}

}  // namespace
}  // namespace terrace
