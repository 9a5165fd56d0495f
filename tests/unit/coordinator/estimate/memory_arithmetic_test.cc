// Estimates equal published figures and what their formulas say.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/estimate/memory_arithmetic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_split.h"
#include "coordinator/estimate/report.h"
#include "coordinator/model/presets.h"

namespace terrace {
namespace {

using testing::HasSubstr;

Model ModelOf(const char* preset, int64_t length = 2048) {
  const auto config = ParseModelConfig(FindPreset(preset)->config_json, length);
  EXPECT_TRUE(config.ok()) << config.status();
  return BuildModel(*config);
}

const EstimateCase& Case(const std::vector<EstimateSection>& sections, const std::string& section,
                         const std::string& name) {
  for (const EstimateSection& one : sections) {
    for (const EstimateCase& found : one.cases) {
      if (one.name == section && found.name == name) return found;
    }
  }
  ADD_FAILURE() << section << ": " << name;
  static const EstimateCase none;
  return none;
}

TEST(MemoryArithmeticTest, StatesFollowRajbhandari) {
  const Model model = ModelOf("llama-2-7b");
  const double n = 6'738'415'616;
  const auto sections = EstimateMemory({.model = &model,
                                        .sequence_length = 2048,
                                        .devices = 64,
                                        .gradients = kernels::FindFormat("bf16")});
  const auto device = [&](const char* name) {
    return static_cast<double>(EstimateCase::Total(Case(sections, "training", name).device));
  };
  EXPECT_DOUBLE_EQ(device("no sharding"), 16 * n);
  EXPECT_NEAR(device("ZeRO 1"), 4 * n + 12 * n / 64, 2);
  EXPECT_NEAR(device("ZeRO 2"), 2 * n + 14 * n / 64, 2);
  EXPECT_NEAR(device("ZeRO 3"), 16 * n / 64, 2);
  const EstimateCase& host = Case(sections, "training", "ZeRO 2, optimizer on host");
  EXPECT_NEAR(static_cast<double>(EstimateCase::Total(host.host)), 14 * n / 64, 2);
  EXPECT_EQ(EstimateCase::Total(host.device), 2 * model.Parameters());
  const EstimateCase& nvme = Case(sections, "training", "ZeRO 3, all states on NVMe");
  EXPECT_NEAR(static_cast<double>(EstimateCase::Total(nvme.nvme)), 16 * n / 64, 3);
  EXPECT_TRUE(nvme.host.empty());
  // Two layers of 202,383,360 parameters each in bf16.
  EXPECT_EQ(EstimateCase::Total(nvme.device), 2 * 2 * 202'383'360);
}

// Of fp32 moments 8 bytes a parameter.
TEST(MemoryArithmeticTest, MomentsTakeWhatTheirFormatSays) {
  const Model model = ModelOf("llama-2-7b");
  const double n = 6'738'415'616;
  for (const auto& [format, bytes] :
       {std::pair("f32", 8.0), std::pair("bf16", 4.0), std::pair("int8", 2 * (1 + 4.0 / 256))}) {
    const auto sections = EstimateMemory(
        {.model = &model, .sequence_length = 2048, .moments = kernels::FindFormat(format)});
    const EstimateCase& alone = Case(sections, "training", "no sharding");
    EXPECT_NEAR(static_cast<double>(EstimateCase::Total(alone.device)), (10 + bytes) * n, 2);
  }
}

// Of Adafactor 2.8 million numbers, most of them of rows and columns; of CAME nearly twice as many
// and a moment.
TEST(MemoryArithmeticTest, MeansOfRowsAndColumnsAreNextToNothing) {
  const Model model = ModelOf("llama-2-7b");
  double means = 0;
  for (const Tensor& tensor : model.tensors) {
    means += tensor.shape.size() < 2 ? static_cast<double>(tensor.elements())
                                     : static_cast<double>(tensor.shape[0] + tensor.shape[1]);
  }
  const double n = 6'738'415'616;
  EXPECT_LT(means, 0.0005 * n);
  const EstimateInput input = {
      .model = &model, .sequence_length = 2048, .optimizer = kernels::FindOptimizer("adafactor")};
  const auto sections = EstimateMemory(input);
  const EstimateCase& alone = Case(sections, "training", "no sharding");
  EXPECT_NEAR(static_cast<double>(EstimateCase::Total(alone.device)), 10 * n + 4 * means, 4);
  const EstimateCase& row = Case(sections, "optimizers", "adafactor, without beta1");
  EXPECT_EQ(EstimateCase::Total(row.device), EstimateCase::Total(alone.device));
  const EstimateCase& came = Case(sections, "optimizers", "came; bf16");
  EXPECT_GT(static_cast<double>(EstimateCase::Total(came.device)), 12 * n + 4 * means);
  EXPECT_LT(static_cast<double>(EstimateCase::Total(came.device)), 12 * n + 8.01 * means);
}

// Of llama-2-7b's 32 layers 16 ranks have 2 each; 64 ranks would pad more than they deal, and keep
// all; 40 ranks pad 8 shards.
TEST(MemoryArithmeticTest, WholeMatricesAreDealtOrKept) {
  const Model model = ModelOf("llama-2-7b");
  double matrices = 0, n = 6'738'415'616;
  for (const Tensor& tensor : model.tensors)
    matrices +=
        tensor.layer >= 0 && tensor.shape.size() == 2 ? static_cast<double>(tensor.elements()) : 0;
  const double others = n - matrices;
  const auto total = [&](const char* rule, int64_t devices, const char* stage) {
    const auto sections = EstimateMemory({.model = &model,
                                          .sequence_length = 2048,
                                          .devices = devices,
                                          .optimizer = kernels::FindOptimizer(rule)});
    return static_cast<double>(EstimateCase::Total(Case(sections, "training", stage).device));
  };
  // Weights 2, gradients 4, master 4 and moments 4 of matrices and 8 of the rest.
  EXPECT_NEAR(total("muon", 16, "ZeRO 1"), 6 * n + (8 * matrices + 12 * others) / 16, 4);
  EXPECT_NEAR(total("muon", 16, "ZeRO 2"), 2 * n + (12 * matrices + 16 * others) / 16, 4);
  EXPECT_NEAR(total("muon", 64, "ZeRO 1"), 6 * n + 8 * matrices + 12 * others / 64, 4);
  EXPECT_NEAR(total("muon", 40, "ZeRO 1"),
              6 * (n + matrices / 4) + 8 * matrices / 32 + 12 * others / 40, 4);
  // Of adafactor every rank keeps tables and vectors with masters and means.
  const double rest = total("adafactor", 16, "ZeRO 1") - 6 * n - 4 * matrices / 16 - 4 * others;
  EXPECT_GT(rest, 0);
  EXPECT_LT(rest, 0.0005 * 4 * n);
}

TEST(MemoryArithmeticTest, GradientsInF32TakeTwoBytesMore) {
  const Model model = ModelOf("llama-2-7b");
  const double n = 6'738'415'616;
  const auto sections = EstimateMemory({.model = &model, .sequence_length = 2048, .devices = 64});
  const auto device = [&](const char* name) {
    return static_cast<double>(EstimateCase::Total(Case(sections, "training", name).device));
  };
  EXPECT_NEAR(device("ZeRO 1"), 6 * n + 12 * n / 64, 2);
  EXPECT_NEAR(device("ZeRO 2"), 2 * n + 16 * n / 64, 2);
  EXPECT_NEAR(device("ZeRO 3"), 18 * n / 64, 2);
}

// The counts that PEFT and Unsloth print for rank 16 on all linear layers.
TEST(MemoryArithmeticTest, AdaptersCountAsPublished) {
  EXPECT_EQ(LoraParameters(ModelOf("llama-2-7b"), 16), 39'976'960);
  EXPECT_EQ(LoraParameters(ModelOf("llama-3.1-8b"), 16), 41'943'040);
}

// 0.5 MiB a token for Llama-2-7B in 16 bits, 128 KiB for Llama-3.1-8B with its 8 kv heads.
TEST(MemoryArithmeticTest, KeysAndValuesCountKvHeadsAndWindows) {
  EXPECT_DOUBLE_EQ(KvBytesPerToken(ModelOf("llama-2-7b"), 4096, 2), 512 * 1024);
  EXPECT_DOUBLE_EQ(KvBytesPerToken(ModelOf("llama-3.1-8b"), 8192, 2), 128 * 1024);
  const Model windowed = ModelOf("mistral-7b-v0.1", 16384);  // 4096 in every layer
  EXPECT_DOUBLE_EQ(KvBytesPerToken(windowed, 16384, 2), 128 * 1024 / 4.0);
  EXPECT_DOUBLE_EQ(KvBytesPerToken(windowed, 4096, 2), 128 * 1024);
}

TEST(MemoryArithmeticTest, QuantisedMatricesTake4Point127Bits) {
  const Model model = ModelOf("llama-2-7b");
  const auto sections = EstimateMemory({.model = &model, .sequence_length = 512});
  const EstimateCase& qlora = Case(sections, "qlora", "QLoRA");
  const double matrices = 32.0 * (4 * 4096 * 4096 + 3 * 4096 * 11008);
  const double rest = static_cast<double>(model.Parameters()) - matrices;
  EXPECT_NEAR(static_cast<double>(qlora.device[0].bytes), 4.127 / 8 * matrices + 2 * rest,
              1e-4 * matrices);
  EXPECT_EQ(qlora.device[1].bytes, 2 * 4096 * 11008);
}

// s b h L (4 + 2 q/h ...) of GPT-2: with as many kv heads as heads and f = 4 h it is 2 (4 + 4 + 8)
// h and 4 bytes a head.
TEST(MemoryArithmeticTest, ActivationsOfGpt2AreThirtyTwoBytesAHiddenElement) {
  const Model model = ModelOf("gpt2", 1024);
  const auto sections = EstimateMemory({.model = &model, .sequence_length = 1024, .batch = 4});
  const int64_t tokens = 4096, layers = 12;
  EXPECT_EQ(EstimateCase::Total(Case(sections, "activations", "recompute none").device),
            tokens * layers * (32 * 768 + 4 * 12));
  EXPECT_EQ(EstimateCase::Total(Case(sections, "activations", "recompute full").device),
            tokens * layers * 2 * 768);
}

// Counted by transformers 5 (AutoModelForCausalLM.from_config on the meta device).
TEST(MemoryArithmeticTest, ParametersAreCountedAsTransformersCountsThem) {
  struct Counted {
    const char* config;
    int64_t parameters;
  };
  for (const Counted& one : {
           Counted{R"({"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25,
                       "vocab_size": 50257, "n_positions": 1024})",
                   1557611200},
           Counted{R"({"model_type": "gpt2", "n_embd": 96, "n_layer": 3, "n_head": 3,
                       "vocab_size": 1001, "n_positions": 77, "n_inner": 200})",
                   332664},
           Counted{R"({"model_type": "llama", "vocab_size": 128256, "hidden_size": 8192,
                       "intermediate_size": 28672, "num_hidden_layers": 80,
                       "num_attention_heads": 64, "num_key_value_heads": 8,
                       "max_position_embeddings": 8192, "rms_norm_eps": 1e-5})",
                   70553706496},
           Counted{R"({"model_type": "llama", "vocab_size": 32003, "hidden_size": 256,
                       "intermediate_size": 700, "num_hidden_layers": 5, "num_attention_heads": 8,
                       "num_key_value_heads": 2, "head_dim": 48, "tie_word_embeddings": true,
                       "max_position_embeddings": 2048, "rms_norm_eps": 1e-6})",
                   12112384},
           Counted{R"({"model_type": "mistral", "vocab_size": 32768, "hidden_size": 4096,
                       "intermediate_size": 14336, "num_hidden_layers": 32,
                       "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
                       "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
                       "sliding_window": null})",
                   7248023552},
           Counted{R"({"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896,
                       "intermediate_size": 4864, "num_hidden_layers": 24,
                       "num_attention_heads": 14, "num_key_value_heads": 2,
                       "tie_word_embeddings": true, "max_position_embeddings": 32768,
                       "rms_norm_eps": 1e-6})",
                   494032768},
           Counted{R"({"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024,
                       "intermediate_size": 3072, "num_hidden_layers": 28,
                       "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
                       "tie_word_embeddings": true, "max_position_embeddings": 32768,
                       "rms_norm_eps": 1e-6})",
                   596049920},
       }) {
    const auto config = ParseModelConfig(one.config, 64);
    ASSERT_TRUE(config.ok()) << config.status() << one.config;
    EXPECT_EQ(BuildModel(*config).Parameters(), one.parameters) << one.config;
  }
}

TEST(MemoryArithmeticTest, ReportsShowFormulasBarsAndJson) {
  const Model model = ModelOf("gpt2", 1024);
  const EstimateInput input = {.model = &model, .sequence_length = 1024, .devices = 8};
  const auto sections = EstimateMemory(input);
  const std::string text = EstimateText(input, sections);
  EXPECT_THAT(text, HasSubstr("124439808 parameters"));
  EXPECT_THAT(text, HasSubstr("12 N / 8"));
  EXPECT_THAT(text, HasSubstr(" ████████████████\n")) << "the largest";
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const auto columns = std::count_if(line.begin(), line.end(), [](char c) {
      return (static_cast<unsigned char>(c) & 0xC0) != 0x80;  // but for the rest of UTF-8 letters
    });
    EXPECT_LE(columns, 80) << line;
  }
  const auto json = nlohmann::json::parse(EstimateJson(input, sections));
  EXPECT_EQ(json["model"]["parameters"], 124439808);
  EXPECT_EQ(json["training"]["cases"][0]["device_bytes"], 18 * 124439808LL);
  EXPECT_EQ(json["inference"]["cases"].size(), 3u);
}

}  // namespace
}  // namespace terrace
