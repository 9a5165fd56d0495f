// A DeepSpeed configuration becomes a job spec, and nothing of it goes missing silently.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/deepspeed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/import/report.h"
#include "coordinator/spec/job_spec.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr char kZero3[] = R"({
  "train_batch_size": 256, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8,
  "steps_per_print": 10, "gradient_clipping": 1.0,
  "bf16": {"enabled": true}, "fp16": {"enabled": false, "loss_scale": 0},
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7}},
  "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 3e-5, "warmup_num_steps": 500, "total_num_steps": 9000}},
  "zero_optimization": {
    "stage": 3, "overlap_comm": true, "contiguous_gradients": true, "sub_group_size": 1e9,
    "reduce_bucket_size": 5e8, "stage3_prefetch_bucket_size": 5e8,
    "stage3_param_persistence_threshold": 1e5, "stage3_max_live_parameters": 1e9,
    "offload_optimizer": {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": true, "buffer_count": 4},
    "offload_param": {"device": "cpu", "pin_memory": true}},
  "aio": {"block_size": 1048576, "queue_depth": 8, "thread_count": 1, "single_submit": false, "overlap_events": true},
  "activation_checkpointing": {"partition_activations": true, "cpu_checkpointing": true},
  "wall_clock_breakdown": false
})";

const ImportContext kContext = {
    .model = "gpt2", .train = "corpus.txt", .nodes = 1, .devices_per_node = 8};

SpecDraft Import(std::string_view json, const ImportContext& context = kContext) {
  auto draft = ImportDeepSpeed(json, context);
  EXPECT_TRUE(draft.ok()) << draft.status();
  return draft.ok() ? *std::move(draft) : SpecDraft();
}

std::map<std::string, ImportedSetting> ByName(const SpecDraft& draft) {
  std::map<std::string, ImportedSetting> settings;
  for (const ImportedSetting& setting : draft.settings()) settings[setting.setting] = setting;
  return settings;
}

v1::JobSpec Spec(const SpecDraft& draft) {
  auto spec = ParseJobSpec(draft.Yaml(), "/tmp");
  EXPECT_TRUE(spec.ok()) << spec.status() << "\n" << draft.Yaml();
  return spec.ok() ? *spec : v1::JobSpec();
}

TEST(DeepSpeedTest, Zero3WithOffloadIsTheSameJob) {
  const v1::JobSpec spec = Spec(Import(kZero3));
  EXPECT_EQ(spec.train().global_batch(), 256);
  EXPECT_EQ(spec.layout().micro_batch(), 4u);
  EXPECT_EQ(spec.layout().zero(), 3);
  EXPECT_EQ(spec.layout().bucket_bytes(), 2'000'000'000);
  EXPECT_EQ(spec.layout().persistent_parameters(), 100'000);
  EXPECT_EQ(spec.layout().offload().optimizer().nvme(), 1);
  EXPECT_EQ(spec.layout().offload().parameter().host(), 1);
  EXPECT_EQ(spec.layout().offload().activation().host(), 1);
  EXPECT_EQ(spec.resources().nvme().paths(0), "/local_nvme");
  EXPECT_EQ(spec.resources().nvme().queue_depth(), 8u);
  EXPECT_EQ(spec.resources().devices_per_node(), 8u);
  EXPECT_EQ(spec.train().precision(), "bf16");
  EXPECT_EQ(spec.train().steps(), 9000);
  EXPECT_EQ(spec.train().schedule().name(), "linear");
  EXPECT_EQ(spec.train().schedule().warmup_steps(), 500);
  EXPECT_DOUBLE_EQ(spec.train().optimizer().lr(), 3e-5);
  EXPECT_DOUBLE_EQ(spec.train().optimizer().beta1(), 0.8);
  EXPECT_DOUBLE_EQ(spec.train().clip_grad_norm(), 1);
}

// DeepSpeed counts the elements of a bucket, a job spec its bytes.
TEST(DeepSpeedTest, ABucketHasTheBytesOfItsGradients) {
  const auto bytes = [](const std::string& rest) {
    return Import(
               absl::StrCat(R"({"zero_optimization": {"reduce_bucket_size": 1000}, )", rest, "}"))
        .Get("layout.bucket_size");
  };
  EXPECT_EQ(bytes(R"("bf16": {"enabled": true})"), "4000");
  EXPECT_EQ(bytes(R"("bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "fp32"})"),
            "4000");
  EXPECT_EQ(bytes(R"("bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": null})"),
            "4000");
  EXPECT_EQ(bytes(R"("bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "BF16"})"),
            "2000");
  EXPECT_EQ(bytes(R"("fp16": {"enabled": true}, "data_types": {"grad_accum_dtype": "fp16"})"),
            "2000");
  // Gradients of fp32 training stay f32 whatever was asked for.
  EXPECT_EQ(bytes(R"("bf16": {"enabled": false}, "data_types": {"grad_accum_dtype": "bf16"})"),
            "4000");
}

TEST(DeepSpeedTest, ABucketLargerThanAnyNumberOfBytesStaysANumber) {
  const SpecDraft draft = Import(R"({"zero_optimization": {"reduce_bucket_size": 1e19}})");
  EXPECT_EQ(draft.Get("layout.bucket_size"), "9223372036854775804");
}

TEST(DeepSpeedTest, EveryKeyIsAccountedForOnce) {
  const SpecDraft draft = Import(kZero3);
  EXPECT_EQ(ByName(draft).size(), draft.settings().size());
  EXPECT_EQ(draft.settings().size(), 40u);
  for (const ImportedSetting& setting : draft.settings()) {
    EXPECT_NE(setting.fate, Fate::kUnknown) << setting.setting << ": " << setting.note;
    EXPECT_EQ(setting.target.empty(), setting.fate != Fate::kMapped) << setting.setting;
    EXPECT_TRUE(setting.fate == Fate::kMapped || !setting.note.empty()) << setting.setting;
  }
}

TEST(DeepSpeedTest, KeysThatDeepSpeedDoesNotHaveAreUnknownWithTheNearest) {
  const SpecDraft draft = Import(
      R"({"zero_optimization": {"stage": 2, "nvme_offload": true, "overlap_com": true}, "frobnicate": 1})");
  const auto settings = ByName(draft);
  EXPECT_EQ(settings.at("zero_optimization.nvme_offload").fate, Fate::kUnknown);
  EXPECT_THAT(settings.at("zero_optimization.nvme_offload").note, HasSubstr("offload_param"));
  EXPECT_THAT(settings.at("zero_optimization.overlap_com").note, HasSubstr("overlap_comm"));
  EXPECT_EQ(settings.at("frobnicate").fate, Fate::kUnknown);
}

TEST(DeepSpeedTest, WhatDoesNotExistHereSaysWhatToDo) {
  const auto settings = ByName(Import(
      R"({"optimizer": {"type": "Lamb", "params": {"max_coeff": 10}}, "wandb": {"enabled": true}})"));
  EXPECT_EQ(settings.at("optimizer.type").fate, Fate::kAbsent);
  EXPECT_EQ(settings.at("optimizer.params.max_coeff").fate, Fate::kAbsent);
  EXPECT_THAT(settings.at("wandb.enabled").note, HasSubstr("/metrics"));
}

TEST(DeepSpeedTest, Fp16BringsItsLossScale) {
  const SpecDraft draft = Import(
      R"({"fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 12, "loss_scale_window": 500,
                   "hysteresis": 3, "min_loss_scale": 2, "auto_cast": false}})");
  EXPECT_EQ(draft.Get("train.precision"), "fp16");
  EXPECT_EQ(draft.Get("train.loss_scale.fixed"), "0");
  EXPECT_EQ(draft.Get("train.loss_scale.initial"), "4096");
  EXPECT_EQ(draft.Get("train.loss_scale.window"), "500");
  EXPECT_EQ(draft.Get("train.loss_scale.hysteresis"), "3");
  EXPECT_EQ(draft.Get("train.loss_scale.min"), "2");
  const SpecDraft large = Import(R"({"fp16": {"enabled": true, "initial_scale_power": 32}})");
  EXPECT_EQ(large.Get("train.loss_scale.initial"), "4294967296") << "every digit of it";
  const SpecDraft off = Import(R"({"fp16": {"enabled": false, "loss_scale_window": 500}})");
  EXPECT_FALSE(off.Has("train.loss_scale.window"));
}

TEST(DeepSpeedTest, TheSmallestLearningRateKeepsItsDigits) {
  const SpecDraft draft = Import(
      R"({"optimizer": {"type": "AdamW", "params": {"lr": 1.23456789e-4}},
          "scheduler": {"type": "WarmupCosineLR", "params": {"cos_min_ratio": 0.1}}})");
  EXPECT_EQ(draft.Get("train.schedule.min_lr"), "1.23456789e-05");
}

TEST(DeepSpeedTest, AutoIsLeftToThePlannerAndTheBatchFollowsFromItsParts) {
  const SpecDraft draft = Import(
      R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
          "zero_optimization": {"stage": "auto"}})");
  const v1::JobSpec spec = Spec(draft);
  EXPECT_EQ(spec.train().global_batch(), 64);
  EXPECT_EQ(spec.layout().zero(), -1);
  EXPECT_EQ(ByName(draft).at("zero_optimization.stage").fate, Fate::kAutomatic);
}

TEST(DeepSpeedTest, WeightsDoNotRestFartherAwayThanMoments) {
  const SpecDraft draft = Import(
      R"({"train_batch_size": 8, "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/n"}}})");
  EXPECT_EQ(Spec(draft).layout().offload().optimizer().nvme(), 1);
  ASSERT_FALSE(draft.remarks().empty());
  EXPECT_THAT(draft.remarks()[0], HasSubstr("layout.offload.optimizer"));
}

TEST(DeepSpeedTest, PartsOfTheOptimizerAreShares) {
  const SpecDraft draft = Import(
      R"({"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.25}}})");
  EXPECT_DOUBLE_EQ(Spec(draft).layout().offload().optimizer().host(), 0.25);
  EXPECT_DOUBLE_EQ(Spec(draft).layout().offload().optimizer().device(), 0.75);
}

TEST(DeepSpeedTest, BadInputIsRefusedWithTheKey) {
  const auto error = [](std::string_view json) {
    return std::string(ImportDeepSpeed(json, kContext).status().message());
  };
  EXPECT_THAT(error("{,}"), HasSubstr("no JSON object"));
  EXPECT_THAT(error(R"({"zero_optimization": {"stage": [3]}})"),
              HasSubstr("zero_optimization.stage"));
  EXPECT_THAT(
      error(
          R"({"train_batch_size": 100, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 8})"),
      HasSubstr("256"));
  EXPECT_THAT(error(R"({"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":{"a":1}}}}}}}}}})"),
              HasSubstr("nested deeper"));
}

TEST(DeepSpeedTest, WithoutContextThereArePlaceholdersAndRemarks) {
  const SpecDraft draft = Import("{}", {});
  EXPECT_EQ(Spec(draft).name(), "imported");
  EXPECT_THAT(ImportText(draft, {}), HasSubstr("--model"));
  EXPECT_THAT(ImportJson(draft, {}), HasSubstr("\"valid\": true"));
}

}  // namespace
}  // namespace terrace
