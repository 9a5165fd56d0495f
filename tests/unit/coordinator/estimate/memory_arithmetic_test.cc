// Estimates equal published figures and what their formulas say.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/estimate/memory_arithmetic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

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
  const auto sections = EstimateMemory({.model = &model, .sequence_length = 2048, .devices = 64});
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

TEST(MemoryArithmeticTest, ReportsShowFormulasBarsAndJson) {
  const Model model = ModelOf("gpt2", 1024);
  const EstimateInput input = {.model = &model, .sequence_length = 1024, .devices = 8};
  const auto sections = EstimateMemory(input);
  const std::string text = EstimateText(input, sections);
  EXPECT_THAT(text, HasSubstr("124439808 parameters"));
  EXPECT_THAT(text, HasSubstr("12 N / 8"));
  EXPECT_THAT(text, HasSubstr("████████████████████████████████"));
  const auto json = nlohmann::json::parse(EstimateJson(input, sections));
  EXPECT_EQ(json["model"]["parameters"], 124439808);
  EXPECT_EQ(json["training"]["cases"][0]["device_bytes"], 16 * 124439808LL);
  EXPECT_EQ(json["inference"]["cases"].size(), 3u);
}

}  // namespace
}  // namespace terrace
