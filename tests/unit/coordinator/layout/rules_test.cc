// SPDX-License-Identifier: Apache-2.0
#include "coordinator/layout/rules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "proto/program/grid.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kSequence = 48;

// 12 heads, 4 key-value heads, 10 layers, an MLP of 96.
Model TestModel() {
  const auto config = ParseModelConfig(
      R"({"model_type": "llama", "vocab_size": 61, "hidden_size": 48, "num_hidden_layers": 10,
          "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 4,
          "intermediate_size": 96, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
          "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false})",
      kSequence);
  EXPECT_TRUE(config.ok()) << config.status();
  return BuildModel(*config);
}

v1::Layout SmallLayout() {
  v1::Layout layout;
  layout.set_micro_batch(1);
  layout.set_micro_batches(2);
  layout.set_precision("bf16");
  return layout;
}

absl::Status Check(const std::function<void(v1::Layout&)>& change) {
  v1::JobSpec spec;
  spec.mutable_data()->set_sequence_length(kSequence);
  v1::Layout layout = SmallLayout();
  change(layout);
  return CheckLayout(layout, TestModel(), spec);
}

std::string Refusal(const std::function<void(v1::Layout&)>& change) {
  const absl::Status status = Check(change);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(LayoutRulesTest, OneRankNeedsNothing) {
  EXPECT_TRUE(Check([](v1::Layout&) {}).ok());
}

TEST(LayoutRulesTest, WhatIsUpdatedAsAWholeIsDealtAndNotCut) {
  for (const char* rule : {"muon", "adafactor", "came"}) {
    const auto with = [&](uint32_t zero, const char* reduce) {
      return [=](v1::Layout& l) {
        l.set_optimizer(rule);
        l.set_data_parallel(4);
        l.set_zero_stage(zero);
        l.set_precision("bf16");
        l.set_reduce_format(reduce);
      };
    };
    for (const uint32_t zero : {0, 1, 2})
      EXPECT_TRUE(Check(with(zero, "bf16")).ok()) << Check(with(zero, "bf16"));
    EXPECT_THAT(Refusal(with(3, "f32")),
                HasSubstr(std::string("layout.zero: got 3, must be 0, 1 or 2 with "
                                      "train.optimizer.name ") +
                          rule));
    EXPECT_THAT(Refusal(with(1, "int8")),
                HasSubstr("formats.reduce: got int8, must be f32 or bf16 with train.optimizer"));
  }
}

TEST(LayoutRulesTest, AFullCombinationIsAllowed) {
  const absl::Status status = Check([](v1::Layout& l) {
    l.set_data_parallel(4);
    l.set_tensor_parallel(2);
    l.set_pipeline_parallel(2);
    l.set_context_parallel(2);
    l.set_ranks(32);
    l.set_zero_stage(3);
    l.set_shard_size(2);
    l.set_schedule("interleaved");
    l.set_interleave(3);
    l.set_sequence_parallel(true);
    l.set_recompute("selective");
    l.set_reduce_format("bf16");
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(LayoutRulesTest, RanksAreTheProductOfTheDegrees) {
  EXPECT_THAT(Refusal([](v1::Layout& l) {
                l.set_data_parallel(2);
                l.set_tensor_parallel(2);
                l.set_ranks(8);
              }),
              HasSubstr("dp 2 x tp 2 x pp 1 x cp 1 are 4 ranks, must be 8"));
}

TEST(LayoutRulesTest, TensorParallelRanksDivideHeadsAndTheMlp) {
  EXPECT_THAT(
      Refusal([](v1::Layout& l) { l.set_tensor_parallel(5); }),
      AllOf(HasSubstr("layout.tp: got 5"), HasSubstr("the 12 heads"), HasSubstr("the MLP's 96"),
            HasSubstr("the 4 key-value heads"), HasSubstr("try 4 or 12")));
  EXPECT_THAT(Refusal([](v1::Layout& l) { l.set_tensor_parallel(3); }),
              AllOf(Not(HasSubstr("12 heads")), HasSubstr("key-value"), HasSubstr("try 2 or 4")));
  EXPECT_THAT(Refusal([](v1::Layout& l) { l.set_tensor_parallel(1000); }), HasSubstr("try 12"));
}

TEST(LayoutRulesTest, KeyValueHeadsMayBeFewerThanTensorParallelRanks) {
  EXPECT_TRUE(Check([](v1::Layout& l) { l.set_tensor_parallel(12); }).ok());
}

// phi3's q, k and v are one tensor, whose gradient takes one way.
TEST(LayoutRulesTest, FusedKeysAreNotSharedByTensorParallelRanks) {
  Model model = TestModel();
  model.config.qkv = QkvKind::kFused;
  v1::JobSpec spec;
  spec.mutable_data()->set_sequence_length(kSequence);
  v1::Layout layout = SmallLayout();
  layout.set_tensor_parallel(4);
  EXPECT_TRUE(CheckLayout(layout, model, spec).ok());
  layout.set_tensor_parallel(12);
  EXPECT_THAT(std::string(CheckLayout(layout, model, spec).message()),
              AllOf(HasSubstr("layout.tp: got 12"),
                    HasSubstr("divide the 4 key-value heads, whose"), HasSubstr("try 4")));
}

TEST(LayoutRulesTest, ANormOverAllHeadsNeedsThemOnEachRank) {
  Model model = TestModel();
  model.config.qk_norm = model.config.qk_norm_whole = true;
  v1::JobSpec spec;
  spec.mutable_data()->set_sequence_length(kSequence);
  v1::Layout layout = SmallLayout();
  EXPECT_TRUE(CheckLayout(layout, model, spec).ok());
  layout.set_tensor_parallel(2);
  EXPECT_THAT(std::string(CheckLayout(layout, model, spec).message()),
              AllOf(HasSubstr("layout.tp: got 2, must be 1 ("), HasSubstr("norms all heads"),
                    HasSubstr("try 1, and layout.zero, pp or cp instead")));
}

TEST(LayoutRulesTest, SequenceParallelNeedsTensorParallelAndTokensThatDivide) {
  EXPECT_THAT(Refusal([](v1::Layout& l) { l.set_sequence_parallel(true); }),
              AllOf(HasSubstr("layout.sequence_parallel"), HasSubstr("try false")));
  const auto with_tokens = [](uint32_t micro_batch) {
    return [micro_batch](v1::Layout& l) {
      l.set_tensor_parallel(4);
      l.set_context_parallel(8);  // 6 tokens of a sequence a rank
      l.set_sequence_parallel(true);
      l.set_micro_batch(micro_batch);
    };
  };
  EXPECT_THAT(Refusal(with_tokens(1)),
              AllOf(HasSubstr("the 6 tokens"), HasSubstr("a multiple of 2")));
  EXPECT_TRUE(Check(with_tokens(2)).ok());
}

TEST(LayoutRulesTest, RingAttentionTakesTwoPiecesOfEachSequence) {
  EXPECT_TRUE(Check([](v1::Layout& l) { l.set_context_parallel(24); }).ok());
  EXPECT_THAT(Refusal([](v1::Layout& l) { l.set_context_parallel(16); }),
              AllOf(HasSubstr("layout.cp: got 16"), HasSubstr("data.sequence_length 48"),
                    HasSubstr("try 12 or 24")));
}

TEST(LayoutRulesTest, UlyssesDividesTheHeadsOfATensorParallelRank) {
  const auto ulysses = [](uint32_t tp, uint32_t cp) {
    return [=](v1::Layout& l) {
      l.set_tensor_parallel(tp);
      l.set_context_parallel(cp);
      l.set_context_type("ulysses");
    };
  };
  EXPECT_TRUE(Check(ulysses(1, 4)).ok());
  EXPECT_TRUE(Check(ulysses(2, 2)).ok());
  EXPECT_THAT(Refusal(ulysses(2, 4)), AllOf(HasSubstr("the 2 key-value heads"),
                                            HasSubstr("try 2, or layout.context_type ring")));
}

TEST(LayoutRulesTest, PackedDocumentsGoRoundTheRing) {
  v1::JobSpec spec;
  spec.mutable_data()->set_sequence_length(kSequence);
  spec.mutable_data()->set_samples("packed");
  const auto status = [&](const char* type) {
    v1::Layout layout = SmallLayout();
    layout.set_context_parallel(4);
    layout.set_context_type(type);
    return CheckLayout(layout, TestModel(), spec);
  };
  EXPECT_TRUE(status("ring").ok()) << status("ring");
  EXPECT_THAT(std::string(status("ulysses").message()),
              AllOf(HasSubstr("layout.context_type: got ulysses"), HasSubstr("samples: packed")));
}

TEST(LayoutRulesTest, EveryChunkHasALayer) {
  EXPECT_TRUE(Check([](v1::Layout& l) { l.set_pipeline_parallel(10); }).ok());
  EXPECT_THAT(Refusal([](v1::Layout& l) { l.set_pipeline_parallel(11); }),
              AllOf(HasSubstr("layout.pp: got 11"), HasSubstr("try 10")));
  EXPECT_THAT(Refusal([](v1::Layout& l) {
                l.set_pipeline_parallel(6);
                l.set_schedule("zbv");
              }),
              AllOf(HasSubstr("12 model chunks"), HasSubstr("try 5")));
}

TEST(LayoutRulesTest, StageLayersCoverTheModel) {
  const auto with = [](std::vector<uint32_t> layers) {
    return [layers](v1::Layout& l) {
      l.set_pipeline_parallel(3);
      for (const uint32_t count : layers) l.add_stage_layers(count);
    };
  };
  EXPECT_TRUE(Check(with({2, 5, 3})).ok());
  for (const auto& layers : {std::vector<uint32_t>{5, 5}, {2, 5, 4}, {0, 6, 4}, {2, 2, 3, 3}}) {
    EXPECT_THAT(Refusal(with(layers)),
                AllOf(HasSubstr("layout.stage_layers: got ["), HasSubstr("try [3, 4, 3]")));
  }
}

TEST(LayoutRulesTest, SchedulesHaveTheirChunks) {
  const auto with = [](const char* schedule, uint32_t interleave, uint32_t pp) {
    return [=](v1::Layout& l) {
      l.set_pipeline_parallel(pp);
      l.set_schedule(schedule);
      l.set_interleave(interleave);
    };
  };
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "breadth_first"}) {
    EXPECT_TRUE(Check(with(schedule, 0, 2)).ok()) << schedule;
  }
  EXPECT_THAT(Refusal(with("interleaved", 1, 2)), HasSubstr("layout.interleave: got 1"));
  EXPECT_THAT(Refusal(with("zbv", 3, 2)), HasSubstr("must be 2"));
  EXPECT_THAT(Refusal(with("1f1b", 2, 2)), HasSubstr("try layout.schedule interleaved"));
  EXPECT_THAT(Refusal(with("zb-h1", 0, 1)), HasSubstr("layout.pp of 2 or more"));
  EXPECT_THAT(Refusal(with("2f2b", 0, 2)), HasSubstr("be one of gpipe, 1f1b"));
  EXPECT_THAT(Refusal(with("gpipe", 2, 1)), HasSubstr("try layout.schedule breadth_first"));
  EXPECT_TRUE(Check(with("gpipe", 0, 1)).ok());
  EXPECT_TRUE(Check(with("breadth_first", 1, 1)).ok());
  EXPECT_TRUE(Check(with("breadth_first", 2, 1)).ok());
}

TEST(LayoutRulesTest, RecomputeIsNamedPerLayerOrForAll) {
  EXPECT_TRUE(Check([](v1::Layout& l) {
                l.set_recompute("every");
                l.set_recompute_every(4);
              }).ok());
  EXPECT_THAT(Refusal([](v1::Layout& l) { l.set_recompute("every"); }),
              HasSubstr("layout.recompute_every: got 0"));
  EXPECT_THAT(Refusal([](v1::Layout& l) { l.add_recompute_layers("block"); }),
              HasSubstr("have one for each of the 10 layers"));
  EXPECT_THAT(Refusal([](v1::Layout& l) {
                for (int i = 0; i < 10; ++i) l.add_recompute_layers("sqrt");
              }),
              HasSubstr("be one of none, selective, block"));
}

TEST(LayoutRulesTest, ZeroOfOneRankIsNone) {
  v1::Layout layout = SmallLayout();
  layout.set_zero_stage(3);
  EXPECT_EQ(Completed(layout).zero_stage(), 0u);
  layout.set_context_parallel(2);
  EXPECT_EQ(Completed(layout).zero_stage(), 3u);
}

TEST(LayoutRulesTest, AShardGroupDividesTheDataParallelRanks) {
  const auto with = [](uint32_t zero, uint32_t shard) {
    return [=](v1::Layout& l) {
      l.set_data_parallel(6);
      l.set_zero_stage(zero);
      l.set_shard_size(shard);
    };
  };
  EXPECT_TRUE(Check(with(1, 3)).ok());
  EXPECT_THAT(Refusal(with(2, 4)), AllOf(HasSubstr("layout.shard_size: got 4"),
                                         HasSubstr("the 6 data-parallel"), HasSubstr("3 or 6")));
  EXPECT_THAT(Refusal(with(0, 3)), HasSubstr("layout.zero 1, 2 or 3"));
}

TEST(LayoutRulesTest, GradientsAreNotSentInLessThanTheyAreComputedIn) {
  EXPECT_THAT(Refusal([](v1::Layout& l) {
                l.set_precision("fp32");
                l.set_reduce_format("bf16");
              }),
              HasSubstr("formats.reduce: got 'bf16', must be f32 with train.precision fp32"));
}

TEST(LayoutRulesTest, GradientsAreSentInCodesToWhoKeepsTheirSum) {
  const auto with = [](const char* precision, uint32_t zero, const char* reduce) {
    return [=](v1::Layout& l) {
      l.set_precision(precision);
      l.set_data_parallel(2);
      l.set_zero_stage(zero);
      l.set_reduce_format(reduce);
    };
  };
  for (const char* reduce : {"int8", "fp8", "int4"}) {
    for (const uint32_t zero : {1, 2, 3}) {
      EXPECT_TRUE(Check(with("bf16", zero, reduce)).ok()) << Check(with("bf16", zero, reduce));
      EXPECT_TRUE(Check(with("fp32", zero, reduce)).ok());
    }
  }
  EXPECT_TRUE(Check([&](v1::Layout& l) {
                with("bf16", 2, "int8")(l);
                l.set_gradient_format("bf16");
              }).ok());
  EXPECT_THAT(Refusal(with("bf16", 0, "int8")),
              HasSubstr("formats.reduce: got 'int8', must be f32 or bf16 with zero 0, where every "
                        "rank keeps the whole sum; try bf16, or layout.zero 1"));
  EXPECT_THAT(Refusal(with("fp32", 0, "int8")), HasSubstr("must be f32 with zero 0"));
  const auto alone = [&](uint32_t context) {
    return [=](v1::Layout& l) {
      with("bf16", 3, "int8")(l);
      l.set_shard_size(1);
      l.set_context_parallel(context);
    };
  };
  EXPECT_THAT(Refusal(alone(1)),
              HasSubstr("formats.reduce: got 'int8', must be f32 or bf16 with shard_size 1, where "
                        "every rank keeps the whole sum; try bf16, or layout.shard_size 2"));
  EXPECT_TRUE(Check(alone(2)).ok()) << Check(alone(2));
}

TEST(LayoutRulesTest, BlocksThatExchangeFirstAreSeveralOfWhoShareAState) {
  const auto with = [](uint32_t block, const char* reduce, uint32_t shard_size) {
    return [=](v1::Layout& l) {
      l.set_data_parallel(12);
      l.set_zero_stage(2);
      l.set_reduce_format(reduce);
      l.set_shard_size(shard_size);
      l.set_reduce_block(block);
    };
  };
  for (const uint32_t block : {0, 1, 2, 3, 4, 6})
    EXPECT_TRUE(Check(with(block, "int4", 0)).ok()) << Check(with(block, "int4", 0));
  EXPECT_THAT(Refusal(with(8, "int8", 0)),
              HasSubstr("layout.reduce_block: got 8, must be 1, or cut the 12 data-parallel ranks "
                        "that share a state into two blocks or more; try 6, or 1"));
  EXPECT_THAT(Refusal(with(12, "int8", 0)), HasSubstr("try 6, or 1"));
  EXPECT_THAT(Refusal(with(4, "fp8", 4)), HasSubstr("the 4 data-parallel ranks"));
  EXPECT_THAT(Refusal(with(4, "f32", 0)),
              HasSubstr("layout.reduce_block: got 4, must be left out with formats.reduce f32; try "
                        "formats.reduce int8"));
}

TEST(LayoutRulesTest, ResidualsAreOfCodes) {
  const auto with = [](const char* residual, const char* reduce) {
    return [=](v1::Layout& l) {
      l.set_precision("bf16");
      l.set_data_parallel(4);
      l.set_zero_stage(2);
      l.set_reduce_format(reduce);
      l.set_residual_format(residual);
    };
  };
  for (const char* residual : {"", "bf16", "f32"})
    EXPECT_TRUE(Check(with(residual, "int4")).ok()) << Check(with(residual, "int4"));
  EXPECT_THAT(Refusal(with("int8", "int4")),
              HasSubstr("formats.residual: got 'int8', must be bf16 or f32; leave it out, or try"));
  EXPECT_THAT(Refusal(with("bf16", "f32")),
              HasSubstr("formats.residual: got 'bf16', must be left out with formats.reduce f32, "
                        "which sends no codes; leave it out, or try formats.reduce int8"));
  EXPECT_THAT(Refusal([&](v1::Layout& l) {
                with("bf16", "int8")(l);
                l.set_precision("fp16");
              }),
              HasSubstr("must be left out with train.precision fp16, whose loss scale changes"));
  EXPECT_THAT(Refusal([&](v1::Layout& l) {
                with("bf16", "int8")(l);
                l.set_shard_size(2);
              }),
              HasSubstr("must be left out with layout.shard_size"));
}

TEST(LayoutRulesTest, GradientsInBf16AreSentSo) {
  const auto with = [](const char* precision, const char* gradient, const char* reduce) {
    return [=](v1::Layout& l) {
      l.set_precision(precision);
      l.set_gradient_format(gradient);
      l.set_reduce_format(reduce);
    };
  };
  for (const char* precision : {"bf16", "fp16", "fp8"}) {
    EXPECT_TRUE(Check(with(precision, "bf16", "bf16")).ok()) << precision;
    EXPECT_TRUE(Check(with(precision, "bf16", "")).ok()) << precision;
    EXPECT_TRUE(Check(with(precision, "f32", "bf16")).ok()) << precision;
    EXPECT_TRUE(Check(with(precision, "", "")).ok()) << precision;
  }
  EXPECT_THAT(Refusal(with("bf16", "bf16", "f32")),
              HasSubstr("formats.reduce: got 'f32', must be bf16 with formats.gradient bf16"));
  EXPECT_THAT(Refusal(with("tf32", "bf16", "")),
              HasSubstr("formats.gradient: got 'bf16', must be f32 with train.precision tf32"));
  EXPECT_THAT(Refusal(with("bf16", "fp8", "")),
              HasSubstr("formats.gradient: got 'fp8', must be f32 or bf16"));
  v1::JobSpec spec;
  EXPECT_EQ(ReduceFormat(spec), "");
  spec.mutable_layout()->set_communication_dtype("fp32");
  EXPECT_EQ(ReduceFormat(spec), "f32");
  spec.mutable_layout()->set_communication_dtype("bf16");
  EXPECT_EQ(ReduceFormat(spec), "bf16");
  spec.mutable_formats()->set_reduce("f32");
  EXPECT_EQ(ReduceFormat(spec), "f32") << "its own name comes first";
  v1::Layout layout;
  EXPECT_EQ(Completed(layout).reduce_format(), "f32");
  layout.set_gradient_format("bf16");
  EXPECT_EQ(Completed(layout).reduce_format(), "bf16");
}

TEST(LayoutRulesTest, WeightsHaveTheBitsOfProductsOrAllOfThem) {
  const auto with = [](const char* precision, const char* format, bool stochastic = false) {
    return [=](v1::Layout& l) {
      l.set_precision(precision);
      l.set_parameter_format(format);
      l.set_stochastic_rounding(stochastic);
    };
  };
  for (const char* precision : {"fp32", "tf32", "bf16", "fp16", "fp8"}) {
    EXPECT_TRUE(Check(with(precision, "f32")).ok()) << precision;
    EXPECT_TRUE(Check(with(precision, "")).ok()) << precision;
  }
  EXPECT_TRUE(Check(with("bf16", "bf16")).ok());
  EXPECT_TRUE(Check(with("fp16", "f16")).ok());
  EXPECT_THAT(Refusal(with("bf16", "f16")),
              AllOf(HasSubstr("formats.parameter: got 'f16', must be f32 or bf16 with "
                              "train.precision bf16"),
                    HasSubstr("try bf16")));
  EXPECT_THAT(Refusal(with("fp8", "bf16")), HasSubstr("must be f32 with train.precision fp8"));
  EXPECT_THAT(Refusal(with("bf16", "f32", true)),
              HasSubstr("must be bf16 with train.optimizer.stochastic_rounding"));
}

TEST(LayoutRulesTest, MomentsInBlocksNeedWholeBlocks) {
  const auto with = [](const char* format, bool stochastic = false, uint32_t tp = 1) {
    return [=](v1::Layout& l) {
      l.set_precision("bf16");
      l.set_moments_format(format);
      l.set_stochastic_rounding(stochastic);
      l.set_tensor_parallel(tp);
    };
  };
  for (const char* format : {"", "f32", "bf16", "int8"})
    EXPECT_TRUE(Check(with(format)).ok()) << format << Refusal(with(format));
  EXPECT_TRUE(Check(with("bf16", true)).ok());
  EXPECT_THAT(Refusal(with("nf4")),
              HasSubstr("formats.moments: got 'nf4', must be one of f32, bf16, int8; try bf16"));
  EXPECT_THAT(Refusal(with("int8", true)),
              AllOf(HasSubstr("formats.moments: got 'int8', must be f32 or bf16 with "
                              "train.optimizer.stochastic_rounding"),
                    HasSubstr("try bf16")));
  EXPECT_TRUE(Check(with("bf16", false, 2)).ok());
  EXPECT_EQ(Refusal(with("int8", false, 2)),
            "formats.moments: got 'int8', must be f32 or bf16 for this model with tp 2: its "
            "matrices are cut into pieces that hold whole blocks of at most 8 elements, and a "
            "block needs 16; try bf16, or fewer ranks in tp");
  EXPECT_THAT(Refusal(with("int8", false, 4)), HasSubstr("blocks of at most 4 elements"));
}

TEST(LayoutRulesTest, ActivationsIn16BitsMayWaitIn8) {
  const auto with = [](const char* precision, const char* format) {
    return [=](v1::Layout& l) {
      l.set_precision(precision);
      l.set_activation_format(format);
    };
  };
  for (const char* precision : {"bf16", "fp16", "fp8"}) {
    for (const char* format : {"", "fp8", "int8"})
      EXPECT_TRUE(Check(with(precision, format)).ok()) << Refusal(with(precision, format));
  }
  EXPECT_THAT(
      Refusal(with("bf16", "nf4")),
      HasSubstr("formats.activation: got 'nf4', must be fp8 or int8; leave it out, or try"));
  for (const char* precision : {"fp32", "tf32"}) {
    EXPECT_THAT(Refusal(with(precision, "int8")),
                HasSubstr(absl::StrCat("formats.activation: got 'int8', must be left out with "
                                       "train.precision ",
                                       precision)));
  }
}

TEST(LayoutRulesTest, WeightsTravelIn8BitsWhereTheyAreGatheredForEachUse) {
  const auto with = [](const char* precision, const char* format, uint32_t zero = 3) {
    return [=](v1::Layout& l) {
      l.set_precision(precision);
      l.set_gather_format(format);
      l.set_data_parallel(2);
      l.set_zero_stage(zero);
    };
  };
  for (const char* precision : {"bf16", "fp16", "fp8"}) {
    for (const char* format : {"", "fp8", "int8"})
      EXPECT_TRUE(Check(with(precision, format)).ok()) << Refusal(with(precision, format));
  }
  EXPECT_THAT(
      Refusal(with("bf16", "nf4")),
      HasSubstr("formats.gather: got 'nf4', must be fp8 or int8; leave it out, or try int8"));
  EXPECT_THAT(Refusal(with("fp32", "int8")),
              HasSubstr("formats.gather: got 'int8', must be left out with train.precision fp32"));
  for (const uint32_t zero : {0, 1, 2}) {
    EXPECT_THAT(Refusal(with("bf16", "int8", zero)),
                HasSubstr("formats.gather: got 'int8', must be left out with zero below 3"));
  }
}

// Of matrices whose rows ranks and tiles cut, the largest power of two that divides all pieces.
TEST(LayoutRulesTest, BlocksFitBetweenTheCuts) {
  ModelConfig llama = {.hidden = 4096, .layers = 32, .heads = 32, .kv_heads = 32, .head_dim = 128};
  llama.intermediate = 11008;
  v1::Layout layout;
  const auto block = [&](const ModelConfig& config, uint32_t tp) {
    layout.set_tensor_parallel(tp);
    return MomentBlock(layout, config);
  };
  EXPECT_EQ(block(llama, 1), 256);
  EXPECT_EQ(block(llama, 2), 128);
  EXPECT_EQ(block(llama, 8), 32);
  ModelConfig gpt2 = {.hidden = 1600, .layers = 48, .heads = 25, .kv_heads = 25, .head_dim = 64};
  gpt2.intermediate = 6400;
  gpt2.conv1d_weights = true;
  EXPECT_EQ(block(gpt2, 1), 256);  // nothing is cut: rows need not be whole blocks
  EXPECT_EQ(block(gpt2, 5), 64);
  layout.set_tile_bytes(1 << 20);
  EXPECT_EQ(block(gpt2, 1), 64);
}

// Without a word weights are rounded where that takes no memory.
TEST(LayoutRulesTest, SharedWeightsAreRounded) {
  const auto format = [](const char* precision, uint32_t zero, v1::Tier tier) {
    v1::Layout layout;
    layout.set_precision(precision);
    layout.set_data_parallel(2);
    layout.set_zero_stage(zero);
    if (tier == v1::HOST) layout.mutable_offload()->mutable_parameter()->set_host(1);
    return Completed(layout).parameter_format();
  };
  EXPECT_EQ(format("bf16", 0, v1::DEVICE), "f32");
  for (const uint32_t zero : {1, 2, 3}) {
    EXPECT_EQ(format("bf16", zero, v1::DEVICE), "bf16");
    EXPECT_EQ(format("fp16", zero, v1::DEVICE), "f16");
    EXPECT_EQ(format("fp8", zero, v1::DEVICE), "f32");
    EXPECT_EQ(format("fp32", zero, v1::DEVICE), "f32");
  }
  EXPECT_EQ(format("bf16", 3, v1::HOST), "f32");
}

TEST(LayoutRulesTest, AllProblemsAreReportedAtOnce) {
  EXPECT_THAT(Refusal([](v1::Layout& l) {
                l.set_tensor_parallel(5);
                l.set_context_parallel(5);
                l.set_pipeline_parallel(20);
              }),
              AllOf(HasSubstr("layout.tp"), HasSubstr("layout.cp"), HasSubstr("layout.pp")));
}

TEST(LayoutRulesTest, LongerChunksAreInTheMiddle) {
  v1::Layout layout;
  layout.set_pipeline_parallel(4);
  EXPECT_THAT(ChunkLayers(layout, 10), ElementsAre(2, 3, 3, 2));
  EXPECT_THAT(ChunkLayers(layout, 8), ElementsAre(2, 2, 2, 2));
  layout.set_interleave(2);
  EXPECT_THAT(ChunkLayers(layout, 11), ElementsAre(1, 1, 2, 2, 2, 1, 1, 1));
}

TEST(LayoutRulesTest, ShardsAreSharedByNeighbours) {
  v1::Layout layout;
  layout.set_data_parallel(8);
  layout.set_tensor_parallel(2);
  layout.set_zero_stage(1);
  layout.set_shard_size(4);
  const v1::Grid grid = GridOf(layout);
  EXPECT_EQ(RanksOf(grid), 16u);
  EXPECT_EQ(grid.data_shard(), 4u);
  EXPECT_EQ(grid.data_replica(), 2u);
  EXPECT_EQ(CoordinatesOf(grid, 7).replica, 0u);
  EXPECT_EQ(CoordinatesOf(grid, 8).replica, 1u);
  layout.set_zero_stage(0);
  EXPECT_EQ(GridOf(layout).data_shard(), 8u);
}

// ---- tiers

TEST(LayoutRulesTest, WhatAnOffloadLeavesOutStaysExceptGradients) {
  v1::Layout layout = SmallLayout();
  layout.mutable_offload()->mutable_optimizer()->set_host(0.5);
  layout.mutable_offload()->mutable_optimizer()->set_nvme(0.25);
  layout.mutable_offload()->mutable_optimizer()->set_device(0.25);
  const v1::Layout complete = Completed(layout);
  EXPECT_EQ(complete.offload().parameter().device(), 1);
  EXPECT_EQ(complete.offload().activation().device(), 1);
  EXPECT_EQ(complete.offload().gradient().host(), 0.75);
  EXPECT_EQ(complete.offload().gradient().device(), 0.25);
  EXPECT_EQ(complete.chunk_bytes(), 8 << 20);
  EXPECT_EQ(complete.allocator(), "planned");
  EXPECT_EQ(Completed(complete).SerializeAsString(), complete.SerializeAsString());
}

TEST(LayoutRulesTest, AnOffloadToTheDeviceIsNone) {
  v1::Layout layout = SmallLayout();
  layout.mutable_offload()->mutable_optimizer()->set_device(1);
  EXPECT_FALSE(Completed(layout).has_offload());
  EXPECT_EQ(Completed(layout).chunk_bytes(), 0);
}

TEST(LayoutRulesTest, WeightsAndGradientsAreNotFartherAwayThanTheOptimizer) {
  EXPECT_THAT(Refusal([](v1::Layout& l) { l.mutable_offload()->mutable_parameter()->set_host(1); }),
              HasSubstr("layout.offload.parameter: got host, must not be farther away than "
                        "layout.offload.optimizer, which is on device; try device, or "
                        "layout.offload.optimizer host"));
  EXPECT_THAT(Refusal([](v1::Layout& l) {
                l.mutable_offload()->mutable_optimizer()->set_host(1);
                l.mutable_offload()->mutable_gradient()->set_nvme(0.1);
                l.mutable_offload()->mutable_gradient()->set_host(0.9);
              }),
              HasSubstr("layout.offload.gradient: got nvme"));
  EXPECT_TRUE(Check([](v1::Layout& l) {
                l.mutable_offload()->mutable_parameter()->set_nvme(1);
                l.mutable_offload()->mutable_optimizer()->set_nvme(0.1);
                l.mutable_offload()->mutable_optimizer()->set_host(0.9);
              }).ok());
}

TEST(LayoutRulesTest, ActivationsLeaveWhereverTheOptimizerIs) {
  EXPECT_TRUE(
      Check([](v1::Layout& l) { l.mutable_offload()->mutable_activation()->set_host(1); }).ok());
}

TEST(LayoutRulesTest, PartsAndSizesOfTiersMakeSense) {
  EXPECT_THAT(Refusal([](v1::Layout& l) {
                l.mutable_offload()->mutable_optimizer()->set_host(0.5);
                l.set_chunk_bytes(5000);
                l.set_allocator("arena");
              }),
              AllOf(HasSubstr("layout.offload.optimizer: got device 0, host 0.5, nvme 0, must be"),
                    HasSubstr("layout.chunk_bytes: got 5000, must be a multiple of 4096"),
                    HasSubstr("layout.allocator: got 'arena'")));
}

}  // namespace
}  // namespace terrace
