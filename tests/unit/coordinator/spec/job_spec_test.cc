// SPDX-License-Identifier: Apache-2.0
#include "coordinator/spec/job_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

constexpr char kMinimal[] = R"(name: books
model: {config: gpt2}
data: {train: [books.txt]}
train: {steps: 10, global_batch: 8}
)";

v1::JobSpec Parse(const std::string& yaml) {
  const auto spec = ParseJobSpec(yaml, "/jobs");
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? *spec : v1::JobSpec();
}

std::string ErrorOf(const std::string& yaml) {
  const auto spec = ParseJobSpec(yaml, "/jobs");
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument) << yaml;
  return std::string(spec.status().message());
}

TEST(JobSpecTest, DefaultsAreFilledIn) {
  const v1::JobSpec spec = Parse(kMinimal);
  EXPECT_EQ(spec.model().init(), "random");
  EXPECT_EQ(spec.data().tokenizer(), "bytes");
  EXPECT_EQ(spec.data().chat_template(), "");
  EXPECT_EQ(spec.data().loss_on(), "answers");
  EXPECT_EQ(spec.data().sequence_length(), 1024);
  EXPECT_DOUBLE_EQ(spec.train().optimizer().lr(), 3e-4);
  EXPECT_DOUBLE_EQ(spec.train().optimizer().beta2(), 0.95);
  EXPECT_EQ(spec.train().precision(), "bf16");
  EXPECT_EQ(spec.layout().zero(), -1);
  EXPECT_EQ(spec.layout().micro_batch(), 0u);
  EXPECT_EQ(spec.resources().nodes_max(), 1u);
  EXPECT_EQ(spec.checkpoint().directory(), "/jobs/checkpoints/books");
  EXPECT_EQ(spec.max_restarts(), 3);
  EXPECT_EQ(spec.watchdog().on_hang(), "restart");
  EXPECT_EQ(spec.watchdog().timeout_seconds(), 600);
  EXPECT_EQ(spec.yaml(), kMinimal);
}

TEST(JobSpecTest, AKeyWhoseValueIsNullIsNotGiven) {
  v1::JobSpec spec = Parse(R"(name: books
model: {config: gpt2, lora: {alpha: ~}}
data: {train: [books.txt], buckets: null}
train:
  {steps: 10, tokens: ~, global_batch: 8, seed: null, loss_scale: {fixed: null},
   optimizer: {momentum: null, beta1: ~}, schedule: {power:, warmup_tokens: null}}
)");
  spec.set_yaml(kMinimal);
  EXPECT_EQ(spec.DebugString(), Parse(kMinimal).DebugString());
  EXPECT_THAT(ErrorOf(absl::StrReplaceAll(kMinimal, {{"steps: 10", "steps: ~, tokens: null"}})),
              HasSubstr("train.steps: got nothing"));
}

TEST(JobSpecTest, AListInPlaceOfASectionIsNotPassedOver) {
  for (const char* section : {"layout: [{dp: 2}]", "checkpoint:\n- {every_steps: 5}", "formats: []",
                              "watchdog: [tell]"}) {
    EXPECT_THAT(ErrorOf(absl::StrCat(kMinimal, section, "\n")),
                HasSubstr(": got a list, must be a mapping; try its keys without dashes"))
        << section;
  }
  EXPECT_THAT(
      ErrorOf(absl::StrReplaceAll(kMinimal, {{"steps: 10", "steps: 1, optimizer: [{lr: 1}]"}})),
      HasSubstr("train.optimizer: got a list, must be a mapping"));
  EXPECT_THAT(
      ErrorOf(absl::StrReplaceAll(kMinimal, {{"config: gpt2", "config: gpt2, lora: [{rank: 4}]"}})),
      HasSubstr("model.lora: got a list, must be a mapping"));
  EXPECT_THAT(
      ErrorOf(absl::StrReplaceAll(kMinimal, {{"data: {", "data: {validation: {path: b.txt}, "}})),
      HasSubstr("data.validation: got a mapping, must be"));
  EXPECT_THAT(ErrorOf(absl::StrCat(kMinimal, "resources: {nvme: {paths: {a: /mnt}}}\n")),
              HasSubstr("resources.nvme.paths: got a mapping, must be"));
}

TEST(JobSpecTest, EveryKindOfValueIsRead) {
  const v1::JobSpec spec = Parse(R"(
name: all
model: {config: {model_type: gpt2, n_layer: 2, layer_norm_epsilon: 1e-5, scale: "3"}, init: weights/model.safetensors}
data: {train: a.txt, validation: [/v/b.txt, c.jsonl], tokenizer: tok.json, sequence_length: 64,
       chat_template: chat.jinja, loss_on: all}
train:
  steps: 1_000
  global_batch: 1e2
  optimizer: {lr: 6e-4, betas: [0.8, 0.9]}
  precision: fp32
layout: {dp: 4, micro_batch: 5, bucket_size: 25MiB}
resources: {nodes: "1:4", device_memory: 1.5GiB}
)");
  const nlohmann::json config = nlohmann::json::parse(spec.model().config_json());
  EXPECT_EQ(config["n_layer"], 2);
  EXPECT_EQ(config["layer_norm_epsilon"], 1e-5);
  EXPECT_EQ(config["scale"], "3");
  EXPECT_EQ(spec.model().init(), "/jobs/weights/model.safetensors");
  EXPECT_THAT(spec.data().train(), ElementsAre("/jobs/a.txt"));
  EXPECT_THAT(spec.data().validation(), ElementsAre("/v/b.txt", "/jobs/c.jsonl"));
  EXPECT_EQ(spec.data().chat_template(), "/jobs/chat.jinja");
  EXPECT_EQ(spec.data().loss_on(), "all");
  EXPECT_EQ(spec.train().steps(), 1000);
  EXPECT_EQ(spec.train().global_batch(), 100);
  EXPECT_DOUBLE_EQ(spec.train().optimizer().beta1(), 0.8);
  EXPECT_EQ(spec.layout().bucket_bytes(), 25 << 20);
  EXPECT_EQ(spec.resources().nodes_max(), 4u);
  EXPECT_EQ(spec.resources().device_memory(), int64_t{3} << 29);
}

TEST(JobSpecTest, ATimeLimitIsATimeWithUnits) {
  EXPECT_EQ(Parse(kMinimal).time_limit_seconds(), 0);
  EXPECT_EQ(Parse(absl::StrCat(kMinimal, "time_limit: 2h30m\n")).time_limit_seconds(), 9000);
  for (const char* text : {"0s", "-1h", "90", "soon", "[1h]", "367d"}) {
    EXPECT_THAT(ErrorOf(absl::StrCat(kMinimal, "time_limit: ", text, "\n")),
                HasSubstr("must be a time such as 90s, 45m, 2h30m or 1d12h, from 1s to 366d"))
        << text;
  }
}

TEST(JobSpecTest, LayoutAutoIsTheDefaultLayout) {
  EXPECT_EQ(Parse(absl::StrCat(kMinimal, "layout: auto\n")).layout().SerializeAsString(),
            Parse(kMinimal).layout().SerializeAsString());
  EXPECT_THAT(ErrorOf(absl::StrCat(kMinimal, "layout: fast\n")),
              HasSubstr("layout: got \"fast\", must be auto or a mapping"));
}

TEST(JobSpecTest, AllProblemsAreReportedAtOnceWithTheirPlaces) {
  const std::string error = ErrorOf(R"(name: books
model: {config: gpt2, atention: full}
data: {train: [books.txt], sequence_length: long}
train:
  steps: 0
  schedule: {name: cosin}
  trace_steps: -1
)");
  EXPECT_THAT(error, HasSubstr("line 2, column 23: model.atention: got an unknown key"));
  EXPECT_THAT(error, HasSubstr("try model.attention"));
  EXPECT_THAT(error, HasSubstr("line 3, column 28: data.sequence_length: got \"long\""));
  EXPECT_THAT(error,
              HasSubstr("line 5, column 3: train.steps: got \"0\", must be a whole number from 1"));
  EXPECT_THAT(error,
              AllOf(HasSubstr("train.schedule.name: got \"cosin\""), HasSubstr("try cosine")));
  EXPECT_THAT(error,
              HasSubstr("train.trace_steps: got \"-1\", must be a whole number from 0 to 1000000"));
  EXPECT_THAT(error, HasSubstr("train.global_batch: got nothing, must be a whole number from 1"));
}

TEST(JobSpecTest, TextThatNoFileOrTerminalTakesIsRefused) {
  EXPECT_THAT(ErrorOf(absl::StrCat(kMinimal, "# caf\xe9\n")),
              AllOf(HasSubstr(", column 6: the spec: got the byte \\xe9"), HasSubstr("UTF-8")));
  EXPECT_THAT(ErrorOf("name: books\ndata: {train: \"books\\0.txt\"}\n"),
              HasSubstr("data.train: got \"books\\x00.txt\", must be text without control"));
  EXPECT_THAT(ErrorOf("name: \"\\e[2Jbooks\"\n"), HasSubstr("name: got \"\\x1b[2Jbooks\""));
}

TEST(JobSpecTest, AKeyInTheWrongSectionIsPointedHome) {
  EXPECT_THAT(ErrorOf(absl::StrCat(kMinimal, "learning: 1\nsequence_length: 5\n")),
              HasSubstr("try data.sequence_length"));
}

TEST(JobSpecTest, DuplicateKeysAreRefused) {
  EXPECT_THAT(ErrorOf(absl::StrCat(kMinimal, "name: again\n")),
              HasSubstr("name: got the key twice"));
  const std::string inline_config = absl::StrReplaceAll(
      kMinimal, {{"{config: gpt2}", "{config: {n_layer: 1, x: [{y: 1, y: 2}]}}"}});
  EXPECT_THAT(ErrorOf(inline_config), HasSubstr("model.config.x.y: got the key twice"));
}

TEST(JobSpecTest, MalformedYamlNamesLineAndColumn) {
  EXPECT_THAT(ErrorOf("name: [a\nmodel: }"), AllOf(HasSubstr("line 2"), HasSubstr("is not YAML")));
  EXPECT_THAT(ErrorOf("- a\n- b\n"), HasSubstr("must be a mapping"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("must be a mapping"));
}

TEST(JobSpecTest, AWordWhereASectionBelongsIsRefused) {
  EXPECT_THAT(
      ErrorOf("name: a\nmodel: gpt2\ndata: {train: x}\ntrain: {steps: 1, global_batch: 1}\n"),
      HasSubstr("model: got \"gpt2\", must be a mapping"));
}

TEST(JobSpecTest, CrossFieldRules) {
  EXPECT_THAT(
      ErrorOf("name: Big Job\nmodel: {config: gpt2}\ndata: {train: x}\n"
              "train: {steps: 5, global_batch: 6, schedule: {warmup_steps: 9, min_lr: 1}}\nlayout: "
              "{dp: 4, micro_batch: 7}\n"),
      AllOf(HasSubstr("try big-job"), HasSubstr("at most train.steps 5"),
            HasSubstr("at most train.optimizer.lr"),
            HasSubstr("a divisor of train.global_batch 6; try 3 or 6"),
            HasSubstr("at most train.global_batch 6; try 6")));
}

TEST(JobSpecTest, RanksThatCannotShareTheBatchAreToldTheNearestThatCan) {
  const auto error = [](int batch, int dp) {
    return ErrorOf(
        absl::StrCat("name: a\nmodel: {config: gpt2}\ndata: {train: x}\ntrain: {steps: "
                     "5, global_batch: ",
                     batch, "}\nlayout: {dp: ", dp, "}\n"));
  };
  EXPECT_THAT(error(8, 5), HasSubstr("layout.dp: got 5, must be a divisor of train.global_batch 8; "
                                     "try 4 or 8"));
  EXPECT_THAT(error(8, 40), EndsWith("try 8"));
  EXPECT_THAT(error(7, 2), HasSubstr("try 1 or 7"));
  EXPECT_THAT(error(360, 7), HasSubstr("try 6 or 8"));
}

TEST(JobSpecTest, ALayoutIsReadWhole) {
  const v1::LayoutSpec layout =
      Parse(absl::StrCat(kMinimal,
                         "layout: {dp: 2, tp: 4, pp: 3, cp: 2, zero: 3, recompute: every, "
                         "recompute_every: 2, recompute_layers: [none, block, selective], "
                         "schedule: zb-h1, interleave: 1, stage_layers: [3, 5, 4], "
                         "context_type: ulysses, sequence_parallel: false, shard_size: 2, "
                         "communication_dtype: bf16, persistent_parameters: 1e5}\n"))
          .layout();
  EXPECT_EQ(layout.tp(), 4u);
  EXPECT_EQ(layout.pp(), 3u);
  EXPECT_EQ(layout.cp(), 2u);
  EXPECT_EQ(layout.zero(), 3);
  EXPECT_EQ(layout.recompute(), "every");
  EXPECT_EQ(layout.recompute_every(), 2u);
  EXPECT_THAT(layout.recompute_layers(), ElementsAre("none", "block", "selective"));
  EXPECT_EQ(layout.schedule(), "zb-h1");
  EXPECT_EQ(layout.interleave(), 1u);
  EXPECT_THAT(layout.stage_layers(), ElementsAre(3, 5, 4));
  EXPECT_EQ(layout.context_type(), "ulysses");
  EXPECT_EQ(layout.sequence_parallel(), 0);
  EXPECT_EQ(layout.shard_size(), 2u);
  EXPECT_EQ(layout.communication_dtype(), "bf16");
  EXPECT_EQ(layout.persistent_parameters(), 100'000);
}

TEST(JobSpecTest, WhatALayoutLeavesOutIsChosen) {
  for (const char* layout : {"", "layout: auto\n", "layout: {tp: 2}\n"}) {
    const v1::LayoutSpec chosen = Parse(absl::StrCat(kMinimal, layout)).layout();
    EXPECT_EQ(chosen.zero(), -1);
    EXPECT_EQ(chosen.sequence_parallel(), -1);
    EXPECT_EQ(chosen.persistent_parameters(), -1);
    EXPECT_EQ(chosen.pp(), 0u);
    EXPECT_EQ(chosen.schedule(), "");
  }
}

TEST(JobSpecTest, LayoutValuesOutsideTheirRangeAreRefused) {
  const std::string error =
      ErrorOf(absl::StrCat(kMinimal,
                           "layout: {tp: 0, zero: 4, recompute: ful, schedule: 1fb1, "
                           "stage_layers: [3, 0], recompute_layers: [block, blok], "
                           "sequence_parallel: maybe, context_type: star, pp: 1.5}\n"));
  EXPECT_THAT(error, AllOf(HasSubstr("layout.tp: got \"0\""), HasSubstr("layout.zero: got \"4\""),
                           HasSubstr("try full"), HasSubstr("try 1f1b"),
                           HasSubstr("layout.stage_layers: got \"0\"")));
  EXPECT_THAT(error, AllOf(HasSubstr("layout.recompute_layers: got \"blok\""),
                           HasSubstr("try block"), HasSubstr("true or false"),
                           HasSubstr("one of ring, ulysses"), HasSubstr("layout.pp: got \"1.5\"")));
  EXPECT_THAT(ErrorOf(absl::StrCat(kMinimal, "layout: {stage_layers: 4}\n")),
              HasSubstr("must be a list"));
}

TEST(JobSpecTest, AnAdaptersFolderSaysTheRestOfIt) {
  const auto with = [](const std::string& model) {
    return absl::StrReplaceAll(kMinimal, {{"config: gpt2", "config: gpt2, " + model}});
  };
  const v1::JobSpec spec = Parse(with("init: base, lora: {init: saved}"));
  EXPECT_EQ(spec.model().lora().init(), "/jobs/saved");
  EXPECT_EQ(spec.model().lora().rank(), 0u) << "adapter_config.json says it";
  EXPECT_EQ(spec.model().lora().targets_size(), 0);
  EXPECT_THAT(ErrorOf(with("lora: {init: saved}")),
              HasSubstr("model.init: got random, must be the weights that the adapter"));
  EXPECT_THAT(ErrorOf(with("init: base, lora: {init: saved, rank: 4, rslora: false}")),
              AllOf(HasSubstr("model.lora.rank: got a value, must be left out"),
                    HasSubstr("model.lora.rslora"), HasSubstr("/jobs/saved")));
  EXPECT_EQ(Parse(with("lora: {rank: 4, init: gaussian}")).model().lora().init(), "gaussian");
}

TEST(JobSpecTest, AJobThatSavesNeverHasNoStepsToSaveAfter) {
  EXPECT_THAT(ErrorOf(absl::StrCat(kMinimal, "checkpoint: {save: never, every_steps: 5}\n")),
              HasSubstr("checkpoint.every_steps: got 5, must be left out with checkpoint.save "
                        "never"));
}

TEST(JobSpecTest, ACheckpointIsNoDirectoryOfCheckpoints) {
  for (const char* inside : {"", "/", "/more"}) {
    EXPECT_THAT(ErrorOf(absl::StrCat(kMinimal, "checkpoint: {directory: /ck/a/step-00000050",
                                     inside, "}\n")),
                HasSubstr("must be the folder that holds checkpoints, while step-00000050 is the "
                          "name of one; try /ck/a"));
  }
  EXPECT_TRUE(
      ParseJobSpec(absl::StrCat(kMinimal, "checkpoint: {directory: /ck/step-2}\n"), "/x").ok());
}

TEST(JobSpecTest, OnlyFp16HasALossScale) {
  for (const char* precision : {"fp32", "bf16", "fp8"}) {
    std::string text(kMinimal);
    const std::string train =
        absl::StrCat("precision: ", precision, ", loss_scale: {window: 1000}, steps");
    text.replace(text.find("steps"), 5, train);
    EXPECT_THAT(ErrorOf(text), HasSubstr(absl::StrCat("train.loss_scale.window: got a loss scale, "
                                                      "must be left out with train.precision ",
                                                      precision)))
        << text;
  }
}

TEST(JobSpecTest, AFixedLossScaleHasNoRulesForAChangingOne) {
  const auto with = [](const std::string& scale) {
    std::string text(kMinimal);
    text.replace(text.find("steps"), 5,
                 absl::StrCat("precision: fp16, loss_scale: {", scale, "}, steps"));
    return text;
  };
  // Not held against an initial scale that is never in use.
  EXPECT_EQ(Parse(with("fixed: 128")).train().loss_scale().fixed(), 128);
  for (const char* key : {"initial", "window", "hysteresis", "min"}) {
    const std::string error = ErrorOf(with(absl::StrCat("fixed: 128, ", key, ": 100000")));
    EXPECT_THAT(error, HasSubstr(absl::StrCat("train.loss_scale.", key)));
    EXPECT_THAT(error, HasSubstr("left out with train.loss_scale.fixed 128"));
    EXPECT_THAT(error, Not(HasSubstr("at most train.loss_scale.initial")));
  }
  EXPECT_THAT(ErrorOf(with("min: 100000")), HasSubstr("at most train.loss_scale.initial 65536"));
}

TEST(JobSpecTest, FormatsAreReadByName) {
  EXPECT_EQ(Parse(kMinimal).formats().parameter(), "");
  for (const char* format : {"f32", "bf16", "f16"}) {
    const std::string text = absl::StrCat(kMinimal, "formats: {parameter: ", format, "}\n");
    EXPECT_EQ(Parse(text).formats().parameter(), format);
  }
  EXPECT_THAT(ErrorOf(absl::StrCat(kMinimal, "formats: {parameter: int8}\n")),
              HasSubstr("formats.parameter: got \"int8\", must be one of f32, bf16, f16"));
  EXPECT_EQ(Parse(absl::StrCat(kMinimal, "formats: {activation: fp8}\n")).formats().activation(),
            "fp8");
  EXPECT_EQ(Parse(kMinimal).formats().activation(), "");
  EXPECT_THAT(ErrorOf(absl::StrCat(kMinimal, "formats: {activation: bf16}\n")),
              HasSubstr("formats.activation: got \"bf16\", must be one of fp8, int8"));
  EXPECT_EQ(Parse(absl::StrCat(kMinimal, "formats: {reduce: int8}\n")).formats().reduce(), "int8");
  EXPECT_EQ(Parse(absl::StrCat(kMinimal, "formats: {reduce: int4}\n")).formats().reduce(), "int4");
  EXPECT_THAT(ErrorOf(absl::StrCat(kMinimal, "formats: {reduce: int2}\n")),
              HasSubstr("formats.reduce: got \"int2\", must be one of f32, bf16, fp8, int8, int4"));
  EXPECT_THAT(ErrorOf(absl::StrCat(kMinimal,
                                   "formats: {reduce: int8}\nlayout: "
                                   "{communication_dtype: fp32}\n")),
              HasSubstr("layout.communication_dtype: got fp32, must be left out, as formats.reduce "
                        "says int8"));
  EXPECT_EQ(Parse(absl::StrCat(kMinimal, "formats: {reduce: int4, residual: bf16}\n"))
                .formats()
                .residual(),
            "bf16");
  EXPECT_THAT(ErrorOf(absl::StrCat(kMinimal, "formats: {residual: bf16}\n")),
              HasSubstr("formats.residual: got bf16, must be accompanied by formats.reduce int8, "
                        "fp8 or int4"));
  EXPECT_EQ(Parse(absl::StrCat(kMinimal, "formats: {gather: int8}\n")).formats().gather(), "int8");
  EXPECT_THAT(ErrorOf(absl::StrCat(kMinimal, "formats: {gather: int4}\n")),
              HasSubstr("formats.gather: got \"int4\", must be one of fp8, int8"));
  EXPECT_THAT(ErrorOf(absl::StrCat(kMinimal, "formats: {frozen: int4}\n")),
              HasSubstr("formats.frozen: got \"int4\", must be one of nf4, int8, fp8"));
  EXPECT_THAT(ErrorOf(absl::StrCat(kMinimal, "formats: {frozen: nf4}\n")),
              HasSubstr("formats.frozen: got nf4, must be accompanied by model.lora or "
                        "train.optimizer.groups that "
                        "freeze something"));
  EXPECT_EQ(Parse(absl::StrCat(kMinimal, "formats: {allow: {gradient: bf16, moments: int8}}\n"))
                .formats()
                .allow()
                .moments(),
            "int8");
  EXPECT_EQ(Parse(absl::StrCat(kMinimal, "formats: {allow: {reduce: int8}}\n"))
                .formats()
                .allow()
                .reduce(),
            "int8");
  EXPECT_THAT(ErrorOf(absl::StrCat(kMinimal, "formats: {allow: {activation: f32}}\n")),
              HasSubstr("formats.allow.activation: got \"f32\", must be one of fp8, int8"));
  std::string in_f32 = absl::StrCat(kMinimal, "formats: {allow: {gather: fp8}}\n");
  in_f32.replace(in_f32.find("steps"), 5, "precision: fp32, steps");
  EXPECT_THAT(ErrorOf(in_f32),
              HasSubstr("formats.allow.gather: got fp8, must be left out with train.precision "
                        "fp32"));
  EXPECT_EQ(Parse(kMinimal).formats().moments(), "f32");
  for (const char* format : {"f32", "bf16", "int8"}) {
    const std::string text = absl::StrCat(kMinimal, "formats: {moments: ", format, "}\n");
    EXPECT_EQ(Parse(text).formats().moments(), format);
  }
  EXPECT_THAT(ErrorOf(absl::StrCat(kMinimal, "formats: {moments: f16}\n")),
              HasSubstr("formats.moments: got \"f16\", must be one of f32, bf16, int8"));
}

TEST(JobSpecTest, WeightsAreRoundedStochasticallyWhereProductsReadBf16) {
  for (const char* precision : {"bf16", "fp8", "fp32", "tf32", "fp16"}) {
    std::string text(kMinimal);
    const std::string train =
        absl::StrCat("precision: ", precision, ", optimizer: {stochastic_rounding: true}, steps");
    text.replace(text.find("steps"), 5, train);
    const bool allowed = std::string(precision) == "bf16" || std::string(precision) == "fp8";
    if (allowed) {
      EXPECT_TRUE(Parse(text).train().optimizer().stochastic_rounding());
      continue;
    }
    const std::string error = ErrorOf(text);
    EXPECT_THAT(error,
                HasSubstr(absl::StrCat("train.optimizer.stochastic_rounding: got true, must be "
                                       "false with train.precision ",
                                       precision)));
    EXPECT_THAT(error, HasSubstr("try train.precision bf16 or fp8"));
  }
}

TEST(JobSpecTest, LayoutKeysThatNeedOthersSayWhich) {
  EXPECT_THAT(ErrorOf(absl::StrCat(kMinimal, "layout: {recompute_every: 2}\n")),
              HasSubstr("try layout.recompute every"));
  EXPECT_THAT(ErrorOf(absl::StrCat(kMinimal, "layout: {recompute: every}\n")),
              HasSubstr("accompanied by layout.recompute_every"));
  EXPECT_THAT(ErrorOf(absl::StrCat(kMinimal, "layout: {shard_size: 2}\n")),
              HasSubstr("accompanied by layout.zero"));
  EXPECT_THAT(ErrorOf(absl::StrCat(kMinimal, "layout: {zero: 2, reduce_block: 4}\n")),
              HasSubstr("layout.reduce_block: got 4, must be accompanied by formats.reduce int8"));
  for (const char* codes : {"{reduce: int4}", "{allow: {reduce: fp8}}"}) {
    const v1::JobSpec spec =
        Parse(absl::StrCat(kMinimal, "layout: {zero: 2, reduce_block: 4}\nformats: ", codes, "\n"));
    EXPECT_EQ(spec.layout().reduce_block(), 4u);
  }
}

TEST(JobSpecTest, BucketsAreAscendingLengthsUpToTheLongestSample) {
  const auto with = [](const std::string& data) {
    return absl::StrReplaceAll(kMinimal, {{"data: {", absl::StrCat("data: {", data, ", ")}});
  };
  const v1::DataSpec plain = Parse(kMinimal).data();
  EXPECT_EQ(plain.samples(), "stream");
  EXPECT_TRUE(plain.buckets().empty());
  const v1::DataSpec data =
      Parse(with("sequence_length: 512, samples: documents, buckets: [128, 512]")).data();
  EXPECT_EQ(data.samples(), "documents");
  EXPECT_THAT(data.buckets(), ElementsAre(128, 512));

  const auto refused = [&](const std::string& buckets) {
    return ErrorOf(with("sequence_length: 512, samples: documents, buckets: " + buckets));
  };
  EXPECT_THAT(refused("[256, 128, 512]"),
              HasSubstr("line 3, column 50: data.buckets: got [256, 128, 512], must be ascending"));
  EXPECT_THAT(refused("[128, 128, 512]"), HasSubstr("ascending"));
  EXPECT_THAT(refused("[128, 256]"), HasSubstr("ends with data.sequence_length 512"));
  EXPECT_THAT(refused("[0, 512]"), HasSubstr("data.buckets: got \"0\" as entry 1 of the list"));
  EXPECT_THAT(refused("[512, null]"),
              HasSubstr("data.buckets: got nothing as entry 2 of the list"));
  EXPECT_THAT(refused("512"), HasSubstr("must be a list"));
  EXPECT_THAT(refused("[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,512]"), HasSubstr("at most 16"));
  EXPECT_THAT(ErrorOf(with("sequence_length: 512, buckets: [128, 512]")),
              HasSubstr("left out without data.samples documents"));
  EXPECT_THAT(ErrorOf(with("samples: document")), HasSubstr("try documents"));
}

TEST(JobSpecTest, PinnedContextRanksMustBeAbleToShareEveryBucket) {
  const auto spec = [](const std::string& layout) {
    return absl::StrReplaceAll(
        absl::StrCat(kMinimal, "layout: {", layout, "}\n"),
        {{"data: {", "data: {sequence_length: 512, samples: documents, buckets: [130, 512], "}});
  };
  EXPECT_THAT(ErrorOf(spec("cp: 2")), HasSubstr("data.buckets: got 130, must be multiples of 4"));
  EXPECT_EQ(Parse(spec("cp: 2, context_type: ulysses")).layout().cp(), 2u);
}

TEST(JobSpecTest, SizesNeedSense) {
  EXPECT_THAT(ErrorOf(absl::StrCat(kMinimal, "resources: {device_memory: lots}\n")),
              HasSubstr("512MiB or 80GiB"));
  EXPECT_THAT(ErrorOf(absl::StrCat(kMinimal, "resources: {device_memory: -1GiB}\n")),
              HasSubstr("a size of at least"));
  EXPECT_THAT(ErrorOf(absl::StrCat(kMinimal, "train2: {x: nan}\n")),
              HasSubstr("train2: got an unknown key"));
}

TEST(JobSpecTest, AliasBombsAndDeepNestingAreRefused) {
  std::string bomb = "a: &a [x,x,x,x,x,x,x,x,x,x]\n";
  for (char c = 'b'; c < 'j'; ++c) {
    const char p = c - 1;
    absl::StrAppend(&bomb, std::string(1, c), ": &", std::string(1, c), " [");
    for (int i = 0; i < 10; ++i) absl::StrAppend(&bomb, i ? "," : "", "*", std::string(1, p));
    absl::StrAppend(&bomb, "]\n");
  }
  EXPECT_THAT(ErrorOf(bomb), HasSubstr("must be smaller"));
  std::string deep = "name: " + std::string(200, '[') + std::string(200, ']');
  EXPECT_THAT(ErrorOf(deep), HasSubstr("must be smaller"));
  EXPECT_THAT(ErrorOf(std::string(2 << 20, 'x')), HasSubstr("must be at most"));
}

TEST(JobSpecTest, RandomTextNeverCrashes) {
  std::mt19937 random(7);
  const std::string alphabet = "abc: {}[],&*!|>-\n\t\"'#%@`0.1~?<\xff";
  for (int round = 0; round < 3000; ++round) {
    std::string text = round % 2 ? kMinimal : "";
    for (int i = 0; i < 30; ++i) {
      text.insert(random() % (text.size() + 1), 1, alphabet[random() % alphabet.size()]);
    }
    (void)ParseJobSpec(text, "/jobs");
  }
}

}  // namespace
}  // namespace terrace
