// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/estimate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/compiler/compile.h"
#include "coordinator/hardware/cluster.h"
#include "coordinator/hardware/profiles.h"
#include "coordinator/layout/precision.h"
#include "coordinator/layout/rules.h"
#include "coordinator/model/presets.h"
#include "coordinator/planner/estimate_stages.h"
#include "tests/unit/coordinator/compiler/factored_jobs.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace {
namespace {

struct Case {
  const char* preset;
  const char* precision;
  uint32_t micro_batch;
  const char* recompute = "none";
};

TEST(EstimateTest, BytesAreNearTheCompiledArena) {
  for (const Case& one :
       {Case{"gpt2", "fp32", 2}, Case{"gpt2", "fp32", 8}, Case{"gpt2", "bf16", 4},
        Case{"qwen3-0.6b", "bf16", 2}, Case{"llama-3.2-1b", "bf16", 1},
        Case{"olmo-2-1b", "bf16", 1}, Case{"granite-3.1-2b-instruct", "bf16", 1},
        Case{"olmo-2-1b", "bf16", 2, "selective"},
        Case{"granite-3.1-2b-instruct", "bf16", 2, "selective"}, Case{"opt-125m", "fp32", 2},
        Case{"phi-3-mini-4k", "bf16", 1}, Case{"gemma-3-270m", "bf16", 2},
        Case{"gemma-3-270m", "fp32", 8}, Case{"gemma-3-1b", "bf16", 4, "selective"},
        Case{"falcon-7b", "bf16", 1}, Case{"smollm3-3b", "bf16", 1},
        Case{"gemma-2-2b", "bf16", 1}, Case{"bloom-560m", "bf16", 2}}) {
    SCOPED_TRACE(testing::Message()
                 << one.preset << " " << one.precision << " " << one.micro_batch);
    v1::JobSpec spec = TinySpec();
    spec.mutable_data()->set_sequence_length(512);
    const Preset* preset = FindPreset(one.preset);
    ASSERT_NE(preset, nullptr);
    const Model model = BuildModel(*ParseModelConfig(preset->config_json, 512));
    v1::Layout layout = TinyLayout({.precision = one.precision, .recompute = one.recompute});
    layout.set_micro_batch(one.micro_batch);
    const auto programs = Compile({.spec = &spec, .model = &model, .layout = layout});
    ASSERT_TRUE(programs.ok()) << programs.status();
    const double ratio =
        static_cast<double>(Estimator(spec, model).DeviceBytes(Completed(layout))) /
        programs->at(0).arenas(0).bytes();
    EXPECT_GT(ratio, 0.95);
    EXPECT_LT(ratio, 1.05);
  }
}

// Of short sequences the update of a matrix takes more than the passes.
TEST(EstimateTest, MuonsBytesAreNearTheCompiledArena) {
  for (const int64_t sequence : {32, 512}) {
    for (const char* precision : {"fp32", "bf16"}) {
      SCOPED_TRACE(testing::Message() << precision << " " << sequence);
      v1::JobSpec spec = TinySpec();
      spec.mutable_data()->set_sequence_length(sequence);
      spec.mutable_train()->mutable_optimizer()->set_name("muon");
      spec.mutable_train()->mutable_optimizer()->set_ns_steps(5);
      const Model model = BuildModel(*ParseModelConfig(FindPreset("gpt2")->config_json, sequence));
      v1::Layout layout = TinyLayout({.precision = precision});
      layout.set_optimizer("muon");
      layout.set_micro_batch(1);
      const auto programs = Compile({.spec = &spec, .model = &model, .layout = layout});
      ASSERT_TRUE(programs.ok()) << programs.status();
      const double ratio =
          static_cast<double>(Estimator(spec, model).DeviceBytes(Completed(layout))) /
          programs->at(0).arenas(0).bytes();
      EXPECT_GT(ratio, 0.95);
      EXPECT_LT(ratio, 1.05);
    }
  }
}

// Its states are a few thousandths of those of AdamW.
TEST(EstimateTest, BytesOfFactoredRulesAreNearTheCompiledArena) {
  for (const char* rule : {"adafactor", "came"}) {
    for (const double beta1 : {0.0, 0.9}) {
      SCOPED_TRACE(testing::Message() << rule << " " << beta1);
      v1::JobSpec spec = TinySpec();
      SetFactored(rule, beta1, spec.mutable_train()->mutable_optimizer());
      const Model model = BuildModel(*ParseModelConfig(FindPreset("gpt2")->config_json, 512));
      spec.mutable_data()->set_sequence_length(512);
      v1::Layout layout = TinyLayout({.precision = "fp32"});
      layout.set_optimizer(rule);
      layout.set_micro_batch(1);
      const auto programs = Compile({.spec = &spec, .model = &model, .layout = layout});
      ASSERT_TRUE(programs.ok()) << programs.status();
      const double ratio =
          static_cast<double>(Estimator(spec, model).DeviceBytes(Completed(layout))) /
          programs->at(0).arenas(0).bytes();
      EXPECT_GT(ratio, 0.95);
      EXPECT_LT(ratio, 1.05);
      int64_t states = 0;
      for (const v1::Buffer& buffer : programs->at(0).buffers())
        states += buffer.class_() == v1::OPTIMIZER ? buffer.bytes() : 0;
      const int64_t moments = std::string(rule) == "came" || beta1 > 0 ? 1 : 0;
      const double beside = static_cast<double>(states - moments * 4 * model.Parameters());
      EXPECT_GT(beside, 0);
      EXPECT_LT(beside, 0.005 * 8 * static_cast<double>(model.Parameters()));
    }
  }
}

// Twelve layers: full rounds, a round with padding, and layers that every rank keeps.
TEST(EstimateTest, BytesOfTensorsThatAreDealtAreNearTheCompiledArena) {
  for (const char* rule : {"muon", "adafactor", "came"}) {
    for (const uint32_t ranks : {2, 8, 7}) {
      for (const uint32_t zero : {1, 2}) {
        for (const uint32_t micro_batches : {1, 3}) {
          for (const char* precision : {"fp32", "bf16"}) {
            SCOPED_TRACE(testing::Message() << rule << " " << ranks << " ranks, ZeRO " << zero
                                            << ", " << micro_batches << " x " << precision);
            v1::JobSpec spec = TinySpec();
            spec.mutable_data()->set_sequence_length(256);
            v1::OptimizerSpec* optimizer = spec.mutable_train()->mutable_optimizer();
            SetFactored(rule, 0.9, optimizer);
            optimizer->set_ns_steps(5);
            const Model model = BuildModel(*ParseModelConfig(FindPreset("gpt2")->config_json, 256));
            v1::Layout layout = TinyLayout({.precision = precision});
            layout.set_optimizer(rule);
            layout.set_micro_batch(1);
            layout.set_micro_batches(micro_batches);
            layout.set_data_parallel(ranks);
            layout.set_zero_stage(zero);
            const auto programs = Compile({.spec = &spec, .model = &model, .layout = layout});
            ASSERT_TRUE(programs.ok()) << programs.status();
            const double ratio =
                static_cast<double>(Estimator(spec, model).DeviceBytes(Completed(layout))) /
                programs->at(0).arenas(0).bytes();
            EXPECT_GT(ratio, 0.93);
            EXPECT_LT(ratio, 1.12);
          }
        }
      }
    }
  }
}

TEST(EstimateTest, SplitLayoutsAreNearTheirLargestArenaToo) {
  struct Split {
    uint32_t dp, tp, pp, cp, zero;
    const char* schedule;
    const char* recompute;
  };
  v1::JobSpec spec = TinySpec();
  spec.mutable_data()->set_sequence_length(512);
  const Model model = BuildModel(*ParseModelConfig(FindPreset("gpt2")->config_json, 512));
  for (const Split& split :
       {Split{1, 2, 1, 1, 0, "1f1b", "none"}, Split{2, 1, 1, 1, 1, "1f1b", "block"},
        Split{4, 1, 1, 1, 2, "1f1b", "none"}, Split{4, 1, 1, 1, 3, "1f1b", "selective"},
        Split{1, 1, 4, 1, 0, "1f1b", "none"}, Split{1, 1, 2, 1, 0, "gpipe", "none"},
        Split{1, 2, 2, 2, 3, "interleaved", "sqrt"}, Split{2, 1, 2, 2, 1, "1f1b", "full"}}) {
    v1::Layout layout = TinyLayout({.precision = "bf16", .micro_batches = 4});
    layout.set_data_parallel(split.dp);
    layout.set_tensor_parallel(split.tp);
    layout.set_pipeline_parallel(split.pp);
    layout.set_context_parallel(split.cp);
    layout.set_zero_stage(split.zero);
    layout.set_schedule(split.schedule);
    layout.set_recompute(split.recompute);
    layout.set_bucket_bytes(int64_t{25} << 20);
    layout = Completed(layout);
    SCOPED_TRACE(layout.ShortDebugString());
    const auto programs = Compile({.spec = &spec, .model = &model, .layout = layout});
    ASSERT_TRUE(programs.ok()) << programs.status();
    int64_t arena = 0;
    for (const v1::Program& program : *programs) {
      arena = std::max(arena, int64_t{program.arenas(0).bytes()});
    }
    const double ratio = static_cast<double>(Estimator(spec, model).DeviceBytes(layout)) /
                         static_cast<double>(arena);
    EXPECT_GT(ratio, 0.9);
    EXPECT_LT(ratio, 1.1);
  }
}

// What the search sizes recompute and offload by, over a grid of layouts on a few ranks: within 5 %
// for each, 2 % on average.
TEST(EstimateTest, BytesAreNearTheArenasOfAGridOfLayouts) {
  v1::JobSpec spec = TinySpec();
  spec.mutable_data()->set_sequence_length(256);
  double sum = 0;
  int count = 0;
  for (const char* preset : {"gpt2", "qwen3-0.6b"}) {
    const Model model = BuildModel(*ParseModelConfig(FindPreset(preset)->config_json, 256));
    const Estimator estimator(spec, model);
    for (const char* recompute : {"none", "selective", "block"}) {
      for (const uint32_t micro_batches : {1, 4}) {
        for (const uint32_t zero : {0, 1, 2, 3}) {
          v1::Layout layout = TinyLayout({.precision = "bf16"});
          layout.set_data_parallel(zero > 0 ? 4 : 1);
          layout.set_zero_stage(zero);
          layout.set_micro_batch(4);
          layout.set_micro_batches(micro_batches);
          layout.set_recompute(recompute);
          layout.set_bucket_bytes(int64_t{25} << 20);
          layout = Completed(layout);
          SCOPED_TRACE(layout.ShortDebugString());
          const auto programs = Compile({.spec = &spec, .model = &model, .layout = layout});
          ASSERT_TRUE(programs.ok()) << programs.status();
          const double off = static_cast<double>(estimator.DeviceBytes(layout)) /
                                 static_cast<double>(programs->at(0).arenas(0).bytes()) -
                             1;
          EXPECT_LT(std::abs(off), 0.05) << off;
          sum += std::abs(off);
          ++count;
        }
      }
    }
  }
  EXPECT_LT(sum / count, 0.02);
}

// Frozen below some layer, and everything but some matrices of each layer: within 15 %.
TEST(EstimateTest, BytesOfFrozenModelsAreNearTheArenasToo) {
  const Model model = BuildModel(*ParseModelConfig(FindPreset("qwen3-0.6b")->config_json, 256));
  for (const std::vector<const char*>& frozen :
       {std::vector<const char*>{"*embed*", "model.layers.?.*", "model.layers.1[0-9].*"},
        std::vector<const char*>{"*embed*", "*self_attn*"}, std::vector<const char*>{"*mlp*"}}) {
    v1::JobSpec spec = TinySpec();
    spec.mutable_data()->set_sequence_length(256);
    for (const char* match : frozen) {
      v1::ParameterGroup* group = spec.mutable_train()->mutable_optimizer()->add_groups();
      group->set_match(match);
      group->set_frozen(true);
    }
    const Estimator estimator(spec, model);
    for (const auto& [parameters, codes] :
         {std::pair{"f32", ""}, {"bf16", ""}, {"bf16", "nf4"}, {"f32", "int8"}}) {
      for (const uint32_t zero : {0, 1, 2, 3}) {
        v1::Layout layout = TinyLayout({.precision = "bf16"});
        layout.set_data_parallel(zero > 0 ? 4 : 1);
        layout.set_zero_stage(zero);
        layout.set_micro_batch(4);
        layout.set_micro_batches(4);
        layout.set_recompute(zero % 2 == 0 ? "block" : "none");
        layout.set_parameter_format(parameters);
        layout.set_frozen_format(codes);
        layout.set_bucket_bytes(int64_t{25} << 20);
        layout = Completed(layout);
        SCOPED_TRACE(absl::StrCat(frozen.back(), " ", layout.ShortDebugString()));
        const auto programs = Compile({.spec = &spec, .model = &model, .layout = layout});
        ASSERT_TRUE(programs.ok()) << programs.status();
        const double ratio = static_cast<double>(estimator.DeviceBytes(layout)) /
                             static_cast<double>(programs->at(0).arenas(0).bytes());
        EXPECT_GT(ratio, 0.85);
        EXPECT_LT(ratio, 1.15);
      }
    }
  }
}

// What people say of QLoRA's base: 7B in 4.5 bits, tables and the head in 16.
TEST(EstimateTest, AFrozenBaseOf7BInNf4TakesLessThanAThirdOfOneInBf16) {
  const Model model = BuildModel(*ParseModelConfig(FindPreset("llama-2-7b")->config_json, 512));
  v1::JobSpec spec = TinySpec();
  spec.mutable_data()->set_sequence_length(512);
  for (const char* match : {"*", "*norm*"}) {
    v1::ParameterGroup* group = spec.mutable_train()->mutable_optimizer()->add_groups();
    group->set_match(match);
    group->set_lr_scale(1);
    group->set_frozen(std::string(match) == "*");
  }
  std::map<std::string, double> weights;
  for (const std::string codes : {"", "nf4"}) {
    v1::Layout layout = TinyLayout({.precision = "bf16"});
    layout.set_parameter_format("bf16");
    layout.set_frozen_format(codes);
    layout.set_recompute("block");
    layout = Completed(layout);
    const auto programs = Compile({.spec = &spec, .model = &model, .layout = layout});
    ASSERT_TRUE(programs.ok()) << programs.status();
    for (const v1::Buffer& buffer : programs->at(0).buffers()) {
      if (buffer.class_() == v1::PARAMETER && buffer.lifetime() == v1::PERSISTENT)
        weights[codes] += static_cast<double>(buffer.bytes());
    }
    const double ratio = static_cast<double>(Estimator(spec, model).DeviceBytes(layout)) /
                         static_cast<double>(programs->at(0).arenas(0).bytes());
    EXPECT_GT(ratio, 0.85) << codes;
    EXPECT_LT(ratio, 1.15) << codes;
  }
  EXPECT_NEAR(weights[""] / 1e9, 2 * 6.738, 0.01);
  EXPECT_NEAR(weights["nf4"] / 1e9, 4.5 / 8 * 6.476 + 2 * 0.262, 0.01);
  EXPECT_LT(weights["nf4"], weights[""] / 3);
}

// Of what rests, waits or travels in fewer bits.
TEST(EstimateTest, BytesOfFormatsAreNearTheArenasToo) {
  v1::JobSpec spec = TinySpec();
  spec.mutable_data()->set_sequence_length(256);
  const Model model = BuildModel(*ParseModelConfig(FindPreset("qwen3-0.6b")->config_json, 256));
  const Estimator estimator(spec, model);
  for (const uint32_t zero : {0, 1, 3}) {
    for (const char* recompute : {"none", "selective", "block"}) {
      for (const auto& [moments, gradient, activation, gather] :
           {std::array{"int8", "f32", "", ""}, std::array{"bf16", "bf16", "", ""},
            std::array{"f32", "f32", "fp8", ""}, std::array{"f32", "f32", "", "int8"},
            std::array{"int8", "bf16", "int8", "fp8"}}) {
        v1::Layout layout = TinyLayout({.precision = "bf16", .micro_batches = 4});
        layout.set_data_parallel(zero > 0 ? 4 : 1);
        layout.set_zero_stage(zero);
        layout.set_micro_batch(4);
        layout.set_recompute(recompute);
        layout.set_bucket_bytes(int64_t{25} << 20);
        layout.set_moments_format(moments);
        layout.set_gradient_format(gradient);
        layout.set_activation_format(activation);
        if (zero == 3) layout.set_gather_format(gather);
        layout = Completed(layout);
        SCOPED_TRACE(layout.ShortDebugString());
        const auto programs = Compile({.spec = &spec, .model = &model, .layout = layout});
        ASSERT_TRUE(programs.ok()) << programs.status();
        const double off = static_cast<double>(estimator.DeviceBytes(layout)) /
                               static_cast<double>(programs->at(0).arenas(0).bytes()) -
                           1;
        EXPECT_LT(std::abs(off), 0.03) << off;
      }
    }
  }
}

// With other precisions for some layers, and gradients that are sent in codes.
TEST(EstimateTest, BytesOfMixedPrecisionsAndCodedSumsAreNearTheArenasToo) {
  v1::JobSpec spec = TinySpec();
  spec.mutable_data()->set_sequence_length(256);
  const Model model = BuildModel(*ParseModelConfig(FindPreset("qwen3-0.6b")->config_json, 256));
  const Estimator estimator(spec, model);
  for (const uint32_t zero : {0, 1, 2, 3}) {
    for (const auto& [place, precision, reduce] :
         {std::array{"first 14", "fp32", "f32"}, std::array{"mlp", "fp8", "f32"},
          std::array{"lm_head", "fp32", "bf16"}, std::array{"first 1, last 1", "fp8", "int8"},
          std::array{"first 1", "fp8", "int4 in two levels"}}) {
      v1::TrainSpec train;
      train.set_precision("bf16");
      v1::PrecisionRule* rule = train.add_precision_rules();
      rule->set_where(place);
      rule->set_precision(precision);
      v1::Layout layout = TinyLayout({.precision = "bf16", .micro_batches = 4});
      SetPrecisions(train, model.config.layers, &layout);
      layout.set_data_parallel(zero > 0 ? 4 : 1);
      layout.set_zero_stage(zero);
      layout.set_micro_batch(4);
      layout.set_recompute("selective");
      layout.set_bucket_bytes(int64_t{25} << 20);
      layout.set_parameter_format("bf16");
      const bool levels = std::string_view(reduce) == "int4 in two levels";
      if (zero > 0) layout.set_reduce_format(levels ? "int4" : reduce);
      if (zero > 0 && levels) {
        layout.set_reduce_block(2);
        layout.set_residual_format("bf16");
      }
      layout = Completed(layout);
      const auto programs = Compile({.spec = &spec, .model = &model, .layout = layout});
      ASSERT_TRUE(programs.ok()) << programs.status();
      const double off = static_cast<double>(estimator.DeviceBytes(layout)) /
                             static_cast<double>(programs->at(0).arenas(0).bytes()) -
                         1;
      EXPECT_LT(std::abs(off), 0.05)
          << off << " zero " << zero << " " << place << " " << precision << " " << reduce;
    }
  }
}

TEST(EstimateTest, CodesOfGradientsAreMadeAsOftenAsTheyAreSent) {
  constexpr uint32_t kMicroBatches = 8;
  const auto traffic = [](uint32_t zero, const char* schedule) {
    v1::Layout layout = TinyLayout({.data_parallel = 2, .micro_batches = kMicroBatches});
    layout.set_zero_stage(zero);
    layout.set_schedule(schedule);
    layout.set_reduce_format("int8");
    return ReducedTraffic(Completed(layout)) * kMicroBatches;
  };
  EXPECT_DOUBLE_EQ(traffic(1, "1f1b"), 4 + 2 * (1 + 4.0 / 128)) << "once a step";
  EXPECT_DOUBLE_EQ(traffic(2, "breadth_first"), traffic(1, "1f1b"));
  EXPECT_DOUBLE_EQ(traffic(2, "1f1b"), kMicroBatches * traffic(1, "1f1b"));
  EXPECT_DOUBLE_EQ(traffic(3, "1f1b"), traffic(2, "1f1b"));
}

// What a block has summed is written, read and encoded, an eighth of it on each rank.
TEST(EstimateTest, CodesOfGradientsOfFourBitsAreMadeTwiceInTwoLevels) {
  v1::Layout layout = TinyLayout({.data_parallel = 16, .micro_batches = 1});
  layout.set_zero_stage(1);
  layout.set_reduce_format("int4");
  constexpr double kCodes = 0.5 + 4.0 / 128;
  EXPECT_DOUBLE_EQ(ReducedTraffic(Completed(layout)), 4 + 2 * kCodes);
  layout.set_reduce_block(8);
  constexpr double kOfSums = 1 + 4.0 / 128;
  EXPECT_DOUBLE_EQ(ReducedTraffic(Completed(layout)), 4 + 2 * kCodes + (8 + 2 * kOfSums) / 8);
}

// A model and a job whose layouts are compared; every layout uses the same number of tokens a step.
class EstimateLayoutsTest : public testing::Test {
 protected:
  static Model Gpt2() {
    return BuildModel(*ParseModelConfig(FindPreset("gpt2")->config_json, 512));
  }
  static v1::JobSpec Spec() {
    v1::JobSpec spec = TinySpec();
    spec.mutable_data()->set_sequence_length(512);
    return spec;
  }
  static v1::Layout Base() {
    v1::Layout layout = TinyLayout({.precision = "bf16"});
    layout.set_micro_batch(2);
    layout.set_micro_batches(8);
    return layout;
  }
  MemoryEstimate Memory(const std::function<void(v1::Layout&)>& change) const {
    v1::Layout layout = Base();
    change(layout);
    return estimator_.Memory(Completed(layout));
  }
  double Seconds(const std::function<void(v1::Layout&)>& change) const {
    v1::Layout layout = Base();
    change(layout);
    return estimator_.StepSeconds(Completed(layout), CpuProfile(2));
  }

  const v1::JobSpec spec_ = Spec();
  const Model model_ = Gpt2();
  const Estimator estimator_{spec_, model_};
};

// In one node it pays to send fewer bits. Over nodes an all-to-all takes the network once for each
// rank of a node, a ring once for all of them.
TEST_F(EstimateLayoutsTest, CodesOfGradientsAreExchangedAndGoRoundNoRing) {
  const auto seconds = [&](const std::string& cluster, const char* reduce) {
    v1::Layout layout = Base();
    layout.set_device("cuda");
    layout.set_zero_stage(1);
    layout.set_data_parallel(cluster == "a100x8:1" ? 8 : 128);
    layout.set_micro_batches(1);
    layout.set_reduce_format(reduce);
    return estimator_.StepSeconds(Completed(layout), ParseCluster(cluster)->profile);
  };
  EXPECT_LT(seconds("a100x8:1", "int8"), seconds("a100x8:1", "f32"));
  EXPECT_GT(seconds("a100x8:16", "int8"), seconds("a100x8:16", "f32"));
}

// First inside nodes, codes take the network once for all ranks of a node, and pay there too.
TEST_F(EstimateLayoutsTest, CodesOfGradientsInTwoLevelsPayOverNodesToo) {
  const auto seconds = [&](const char* reduce, uint32_t block) {
    v1::Layout layout = Base();
    layout.set_device("cuda");
    layout.set_zero_stage(1);
    layout.set_data_parallel(128);
    layout.set_micro_batches(1);
    layout.set_reduce_format(reduce);
    layout.set_reduce_block(block);
    return estimator_.StepSeconds(Completed(layout), ParseCluster("a100x8:16")->profile);
  };
  EXPECT_LT(seconds("int8", 8), seconds("f32", 0));
  EXPECT_LT(seconds("int8", 8), seconds("bf16", 0));
  EXPECT_LT(seconds("int8", 8), seconds("int8", 0));
  EXPECT_LT(seconds("int4", 8), seconds("int8", 8));
}

TEST_F(EstimateLayoutsTest, LargerMicroBatchesTakeMoreMemoryAndNoMoreTime) {
  const auto small = [](v1::Layout& l) {
    l.set_micro_batch(1);
    l.set_micro_batches(8);
  };
  const auto large = [](v1::Layout& l) {
    l.set_micro_batch(8);
    l.set_micro_batches(1);
  };
  EXPECT_LT(Memory(small).total(), Memory(large).total());
  EXPECT_GE(Seconds(small), Seconds(large));
}

// Bytes a parameter: 16 in f32, then 2 + 4 + 12/N, 2 + (4 + 12)/N, (2 + 16)/N; of tables whose rows
// are added up, 2 more of whole weights.
TEST_F(EstimateLayoutsTest, EachZeroStageSharesMore) {
  const auto with = [](uint32_t zero) {
    return [zero](v1::Layout& l) {
      l.set_data_parallel(4);
      l.set_zero_stage(zero);
    };
  };
  const int64_t parameters = model_.Parameters();
  const MemoryEstimate none = Memory(with(0)), one = Memory(with(1));
  EXPECT_EQ(none.state_bytes + none.gradient_bytes, 16 * parameters);
  int64_t tables = 0;
  for (const Tensor& tensor : model_.tensors) {
    const bool added =
        tensor.role == TensorRole::kTokenEmbedding || tensor.role == TensorRole::kPositionEmbedding;
    if (added) tables += tensor.elements();
  }
  EXPECT_NEAR(one.state_bytes + one.gradient_bytes, 9 * parameters + 2 * tables, 0.02 * parameters);
  EXPECT_LT(Memory(with(2)).total(), one.total());
  EXPECT_LT(Memory(with(3)).total(), Memory(with(2)).total());
  EXPECT_EQ(none.activation_bytes, Memory(with(3)).activation_bytes);
  EXPECT_LT(Seconds(with(1)), Seconds(with(2)));
  EXPECT_LT(Seconds(with(2)), Seconds(with(3)));
}

TEST_F(EstimateLayoutsTest, AShardGroupHoldsMoreThanAllRanksWould) {
  const auto with = [](uint32_t shard) {
    return [shard](v1::Layout& l) {
      l.set_data_parallel(8);
      l.set_zero_stage(1);
      l.set_shard_size(shard);
    };
  };
  EXPECT_LT(Memory(with(0)).state_bytes, Memory(with(2)).state_bytes);
}

TEST_F(EstimateLayoutsTest, RecomputeTradesTimeForActivations) {
  const auto with = [](const char* recompute) {
    return [recompute](v1::Layout& l) { l.set_recompute(recompute); };
  };
  EXPECT_LT(Memory(with("selective")).total(), Memory(with("none")).total());
  EXPECT_LT(Memory(with("block")).total(), Memory(with("selective")).total());
  EXPECT_LT(Seconds(with("none")), Seconds(with("selective")));
  EXPECT_LT(Seconds(with("selective")), Seconds(with("block")));
  EXPECT_EQ(Memory([](v1::Layout& l) {
              for (int i = 0; i < 12; ++i) l.add_recompute_layers("block");
            }).total(),
            Memory(with("block")).total());
}

TEST_F(EstimateLayoutsTest, SplitsShareWhatTheySplit) {
  const MemoryEstimate whole = Memory([](v1::Layout&) {});
  const MemoryEstimate tensor = Memory([](v1::Layout& l) { l.set_tensor_parallel(2); });
  EXPECT_NEAR(tensor.state_bytes, whole.state_bytes / 2, 1e3);
  EXPECT_GT(tensor.activation_bytes, whole.activation_bytes / 2) << "norms are not shared";
  const MemoryEstimate sequence = Memory([](v1::Layout& l) {
    l.set_tensor_parallel(2);
    l.set_sequence_parallel(true);
  });
  EXPECT_LT(sequence.activation_bytes, tensor.activation_bytes);
  const MemoryEstimate context = Memory([](v1::Layout& l) { l.set_context_parallel(2); });
  EXPECT_EQ(context.state_bytes, whole.state_bytes);
  // A ring rank also keeps the pair of keys and values that it sent on: 2 k d of two bytes a token.
  const int64_t pairs = 2 * 2 * 768 * 2 * 256 * 12;
  EXPECT_EQ(context.activation_bytes, whole.activation_bytes / 2 + pairs);
}

TEST_F(EstimateLayoutsTest, SchedulesHoldAsManyMicroBatchesAsTheyRunAhead) {
  const auto with = [](const char* schedule) {
    return [schedule](v1::Layout& l) {
      l.set_pipeline_parallel(4);
      l.set_schedule(schedule);
    };
  };
  // gpipe holds all eight, the first stage of 1f1b four.
  EXPECT_GT(Memory(with("gpipe")).activation_bytes, 1.8 * Memory(with("1f1b")).activation_bytes);
  EXPECT_LT(Seconds(with("interleaved")), Seconds(with("1f1b")));
  EXPECT_LT(Seconds(with("zb-h1")), Seconds(with("1f1b")));
  EXPECT_LT(Seconds(with("zbv")), Seconds(with("zb-h1")));
}

}  // namespace
}  // namespace terrace
