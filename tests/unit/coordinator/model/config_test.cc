// SPDX-License-Identifier: Apache-2.0
#include "coordinator/model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "coordinator/model/presets.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

nlohmann::json Preset(std::string_view name) {
  return nlohmann::json::parse(FindPreset(name)->config_json);
}

std::string ErrorOf(const std::string& text, int64_t sequence_length = 128) {
  const auto config = ParseModelConfig(text, sequence_length);
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(config.status().message());
}

TEST(ConfigTest, TextThatIsNoJsonObjectIsRefused) {
  EXPECT_THAT(ErrorOf("{"), HasSubstr("not a JSON object"));
  EXPECT_THAT(ErrorOf("[1]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("not a JSON object"));
}

TEST(ConfigTest, UnsupportedArchitectureNamesTheSupportedOnes) {
  EXPECT_THAT(ErrorOf(R"({"model_type":"bert"})"),
              AllOf(HasSubstr("\"bert\""), HasSubstr("gpt2, llama")));
  EXPECT_THAT(ErrorOf("{}"), HasSubstr("model_type: got nothing"));
}

TEST(ConfigTest, AllProblemsAreReportedAtOnce) {
  nlohmann::json json = Preset("llama-3.2-1b");
  json["hidden_size"] = "big";
  json["num_attention_heads"] = 0;
  json["hidden_act"] = "relu";
  json["rms_norm_eps"] = -1;
  EXPECT_THAT(ErrorOf(json.dump()),
              AllOf(HasSubstr("hidden_size: got \"big\""), HasSubstr("num_attention_heads: got 0"),
                    HasSubstr("hidden_act: got \"relu\""), HasSubstr("rms_norm_eps: got -1")));
}

TEST(ConfigTest, HeadsMustDivide) {
  nlohmann::json json = Preset("gpt2");
  json["n_embd"] = 100;
  EXPECT_THAT(ErrorOf(json.dump()), HasSubstr("a multiple of n_head 12"));
  json = Preset("llama-3.2-1b");
  json["num_key_value_heads"] = 5;
  EXPECT_THAT(ErrorOf(json.dump()), HasSubstr("a divisor of num_attention_heads 32"));
}

TEST(ConfigTest, SequenceBeyondThePositionsIsRefusedWithTheWayOut) {
  EXPECT_THAT(ErrorOf(Preset("gpt2").dump(), 2048),
              AllOf(HasSubstr("2048"), HasSubstr("lower data.sequence_length")));
}

TEST(ConfigTest, HostileNumbersAreRefused) {
  nlohmann::json json = Preset("gpt2");
  json["n_layer"] = 1e300;
  EXPECT_THAT(ErrorOf(json.dump()), HasSubstr("n_layer"));
  json["n_layer"] = uint64_t{1} << 63;
  EXPECT_THAT(ErrorOf(json.dump()), HasSubstr("n_layer"));
  json["n_layer"] = nlohmann::json::array();
  EXPECT_THAT(ErrorOf(json.dump()), HasSubstr("n_layer"));
}

TEST(ConfigTest, MistralWindowHoldsInEveryLayer) {
  const auto config = ParseModelConfig(Preset("mistral-7b-v0.1").dump(), 128);
  ASSERT_TRUE(config.ok());
  EXPECT_THAT(config->window, testing::Each(4096));
}

TEST(ConfigTest, QwenWindowStartsAtMaxWindowLayers) {
  nlohmann::json json = Preset("qwen2.5-0.5b");
  json["use_sliding_window"] = true;
  json["sliding_window"] = 64;
  json["max_window_layers"] = 20;
  const auto config = ParseModelConfig(json.dump(), 128);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->window[19], 0);
  EXPECT_EQ(config->window[20], 64);
}

TEST(ConfigTest, LayerTypesDecideTheWindows) {
  nlohmann::json json = Preset("mistral-7b-v0.1");
  json["num_hidden_layers"] = 2;
  json["layer_types"] = {"sliding_attention", "full_attention"};
  const auto config = ParseModelConfig(json.dump(), 128);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->window, testing::ElementsAre(4096, 0));
  json["layer_types"] = {"linear_attention", "full_attention"};
  EXPECT_THAT(ErrorOf(json.dump()), HasSubstr("linear_attention"));
}

TEST(ConfigTest, QwenBiasesAreOnQkvOnly) {
  const auto config = ParseModelConfig(Preset("qwen2.5-0.5b").dump(), 128);
  ASSERT_TRUE(config.ok());
  EXPECT_TRUE(config->qkv_bias);
  EXPECT_FALSE(config->attention_out_bias);
}

}  // namespace
}  // namespace terrace
