// SPDX-License-Identifier: Apache-2.0
#include "coordinator/model/adapter_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace terrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

nlohmann::json Saved(const std::string& family) {
  std::ifstream file(std::string(TERRACE_GOLDENS) + "/" + family + "/adapter/adapter_config.json");
  return nlohmann::json::parse(file);
}

std::string ErrorOf(const nlohmann::json& json) {
  const auto config = ParseAdapterConfig(json.dump());
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(config.status().message());
}

TEST(AdapterConfigTest, WhatPeftSavesIsRead) {
  const AdapterConfig gpt2 = ParseAdapterConfig(Saved("gpt2").dump()).value();
  EXPECT_EQ(gpt2.rank, 4);
  EXPECT_EQ(gpt2.alpha, 6);
  EXPECT_FALSE(gpt2.rslora);
  EXPECT_THAT(gpt2.targets, ElementsAre("c_attn", "c_proj"));
  const AdapterConfig llama = ParseAdapterConfig(Saved("llama").dump()).value();
  EXPECT_TRUE(llama.rslora);
  EXPECT_THAT(llama.targets, ElementsAre("down_proj", "q_proj", "v_proj"));
}

TEST(AdapterConfigTest, DefaultsAreThoseOfPeft) {
  const auto config =
      ParseAdapterConfig(R"({"peft_type": "LORA", "r": 8, "target_modules": "all-linear"})")
          .value();
  EXPECT_EQ(config.alpha, 8);
  EXPECT_FALSE(config.rslora);
  EXPECT_THAT(config.targets, ElementsAre("all-linear"));
}

TEST(AdapterConfigTest, AllProblemsAreReportedAtOnce) {
  nlohmann::json json = Saved("llama");
  json["r"] = 0;
  json["lora_alpha"] = "much";
  json["bias"] = "all";
  json["use_dora"] = true;
  EXPECT_THAT(ErrorOf(json),
              AllOf(HasSubstr("r: got 0, must be a whole number from 1 to"),
                    HasSubstr("lora_alpha: got \"much\""), HasSubstr("bias: got \"all\""),
                    HasSubstr("use_dora: got true")));
}

TEST(AdapterConfigTest, WhatWouldMakeAnotherAdapterIsRefused) {
  const std::vector<std::pair<const char*, nlohmann::json>> cases = {
      {"lora_dropout", 1},
      {"modules_to_save", {"lm_head"}},
      {"rank_pattern", {{"q_proj", 4}}},
      {"alpha_pattern", {{"q_proj", 4}}},
      {"layers_to_transform", {0, 1}},
      {"layers_to_transform", 3},
      {"layer_replication", {{0, 4}, {2, 5}}},
      {"trainable_token_indices", {5}},
      {"target_parameters", {"experts.gate_up_proj"}},
      {"exclude_modules", "lm_head"},
      {"lora_bias", true},
      {"use_qalora", true},
      {"arrow_config", {{"top_k", 3}}},
      {"alora_invocation_tokens", {1, 2}},
      {"init_lora_weights", "pissa_niter_16"},
      {"init_lora_weights", "loftq"},
      {"task_type", "SEQ_CLS"},
      {"peft_type", "IA3"},
      {"target_modules", ".*(q|v)_proj"},
      {"target_modules", nlohmann::json::array()},
      {"target_modules", {"q_proj", ""}},
      {"target_modules", std::vector<std::string>(5000, "q_proj")},
      {"lora_alpha", 0},
      {"a_key_of_tomorrow", 7},
  };
  for (const auto& [key, value] : cases) {
    nlohmann::json json = Saved("llama");
    json[key] = value;
    EXPECT_THAT(ErrorOf(json),
                AllOf(HasSubstr(std::string(key) + ": got "), HasSubstr(", must be ")))
        << value;
  }
}

TEST(AdapterConfigTest, ManyUnknownKeysAreCounted) {
  nlohmann::json json = Saved("llama");
  for (int i = 0; i < 9; ++i) json["key_" + std::to_string(i)] = i + 1;
  EXPECT_THAT(ErrorOf(json), AllOf(HasSubstr("key_4: got 5"), HasSubstr("4 more keys: got values"),
                                   testing::Not(HasSubstr("key_5"))));
}

TEST(AdapterConfigTest, KeysWithoutEffectAreNoProblem) {
  nlohmann::json json = Saved("llama");
  json["revision"] = "main";
  json["init_lora_weights"] = "gaussian";
  json["runtime_config"] = {{"ephemeral_gpu_offload", false}};
  json["a_key_of_tomorrow"] = nullptr;
  json["layers_pattern"] = "layers";
  EXPECT_TRUE(ParseAdapterConfig(json.dump()).ok());
}

TEST(AdapterConfigTest, TextThatIsNoObjectIsRefused) {
  for (const char* text : {"", "{", "[1]", "7"}) {
    EXPECT_THAT(std::string(ParseAdapterConfig(text).status().message()),
                HasSubstr("not a JSON object"));
  }
  EXPECT_THAT(std::string(ParseAdapterConfig(R"({"r": 4, "r": 8})").status().message()),
              HasSubstr("r: stands twice"));
}

}  // namespace
}  // namespace terrace
