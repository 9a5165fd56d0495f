// What transformers makes of each key of a config.json (tests/golden/pytorch/config_losses.json,
// written by make_config_losses.py) is what Terrace makes of it, or Terrace says something: a key
// is never ignored in silence, and never read as another number.
//
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "coordinator/model/config.h"
#include "coordinator/model/model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/system/numerics_job.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

uint32_t Fnv(const std::string& text) {
  uint32_t value = 2166136261u;
  for (const unsigned char byte : text) value = (value ^ byte) * 16777619u;
  return value;
}

// As fill() of make_config_losses.py, to the bit.
std::vector<float> Fill(const std::string& name, int64_t count) {
  const bool norm = (absl::StrContains(name, "norm") || absl::StrContains(name, "ln_")) &&
                    name.ends_with(".weight");
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) {
    uint32_t mixed = static_cast<uint32_t>(i) * 2654435761u + Fnv(name);
    mixed = (mixed ^ (mixed >> 15)) * 2246822519u;
    values[i] = static_cast<float>(mixed >> 16) / 131072.0f - 0.25f + (norm ? 1.0f : 0.0f);
  }
  return values;
}

struct Batch {
  int64_t rows, length;
  std::vector<int32_t> tokens, targets;
};
Batch MakeBatch(int64_t rows, int64_t length, int64_t vocabulary) {
  Batch batch = {.rows = rows, .length = length};
  const std::vector<float> drawn = Fill("tokens", rows * (length + 1));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t t = 0; t <= length; ++t) {
      const float value = drawn[row * (length + 1) + t] * 4096 + 1024;
      const auto token = static_cast<int32_t>(static_cast<int64_t>(value) % vocabulary);
      if (t < length) batch.tokens.push_back(token);
      if (t > 0) batch.targets.push_back(token);
    }
  }
  return batch;
}

double LossOf(const ModelConfig& config, const Batch& batch) {
  JobData data;
  data.model = BuildModel(config);
  data.rows = batch.rows;
  data.length = batch.length;
  data.tokens = batch.tokens;
  data.targets = batch.targets;
  for (const Tensor& tensor : data.model.tensors)
    data.weights[tensor.name] = Fill(tensor.name, tensor.elements());
  data.train.set_steps(1);
  data.train.mutable_optimizer()->set_name("adamw");
  data.train.mutable_optimizer()->set_epsilon(1e-8);
  data.train.mutable_schedule()->set_name("constant");
  const auto result = TrainInProcess(data, LayoutOf({}), 1, {.turns = 1});
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? result->losses.at(0) : NAN;
}

class ConfigLossesTest : public testing::TestWithParam<const char*> {
 protected:
  ConfigLossesTest() {
    std::ifstream file(std::string(TERRACE_GOLDEN_FOLDER) + "/config_losses.json");
    golden_ = Json::parse(file);
    batch_ =
        MakeBatch(golden_["rows"], golden_["length"], golden_["bases"][GetParam()]["vocab_size"]);
  }

  Json ConfigOf(const Json& changes) const {
    Json config = golden_["bases"][GetParam()];
    config["model_type"] = GetParam();
    config.update(changes);
    config.erase("-");
    if (changes.contains("-")) {
      for (const std::string key : changes["-"]) config.erase(key);
    }
    return config;
  }

  // Of config.json texts whose models are the same, one is trained.
  double LossOnce(const ModelConfig& config) {
    ModelConfig silent = config;
    silent.remarks.clear();
    std::string print = BuildModel(silent).tensors.empty() ? "" : GetParam();
    for (const double number : NumbersOf(silent)) print += " " + std::to_string(number);
    const auto [known, is_new] = losses_.try_emplace(print, 0);
    if (is_new) known->second = LossOf(silent, batch_);
    return known->second;
  }

  static std::vector<double> NumbersOf(const ModelConfig& c) {
    std::vector<double> numbers = {1.0 * c.vocabulary,
                                   1.0 * c.hidden,
                                   1.0 * c.layers,
                                   1.0 * c.heads,
                                   1.0 * c.kv_heads,
                                   1.0 * c.head_dim,
                                   1.0 * c.intermediate,
                                   1.0 * c.max_positions,
                                   1.0 * c.qkv_bias,
                                   1.0 * c.mlp_bias,
                                   1.0 * c.qk_norm,
                                   1.0 * c.attention_out_bias,
                                   1e9 * c.norm_epsilon,
                                   1.0 * c.tied_embeddings,
                                   c.rope.attention_factor,
                                   1.0 * static_cast<int>(c.activation),
                                   1.0 * c.parallel_residual,
                                   c.embedding_scale,
                                   c.attention_scale,
                                   c.residual_scale,
                                   c.logits_scale};
    numbers.push_back(1.0 * c.shared_norm);
    numbers.push_back(c.score_softcap);
    numbers.push_back(c.logits_softcap);
    numbers.push_back(1.0 * static_cast<int>(c.qkv));
    numbers.push_back(c.local_rope.attention_factor);
    for (const double f : c.rope.inverse_frequency) numbers.push_back(1e6 * f);
    for (const double f : c.local_rope.inverse_frequency) numbers.push_back(1e6 * f);
    for (const bool unrotated : c.unrotated) numbers.push_back(unrotated);
    for (const int64_t window : c.window) numbers.push_back(1.0 * window);
    return numbers;
  }

  Json golden_;
  Batch batch_;
  std::map<std::string, double> losses_;
};

bool Says(const std::string& text, const Json& changes) {
  for (const auto& [key, value] : changes.items()) {
    if (absl::StrContains(text, key)) return true;
  }
  return false;
}

TEST_P(ConfigLossesTest, EachKeyFollowsTransformersOrIsSaid) {
  int followed = 0, said = 0;
  for (const Json& one : golden_["cases"]) {
    if (one["family"] != GetParam()) continue;
    const Json& changes = one["changes"];
    const auto config = ParseModelConfig(ConfigOf(changes).dump(), batch_.length);
    if (!config.ok()) {
      EXPECT_TRUE(Says(std::string(config.status().message()), changes)) << config.status();
      ++said;
      continue;
    }
    const bool remarked = std::any_of(config->remarks.begin(), config->remarks.end(),
                                      [&](const auto& text) { return Says(text, changes); });
    // What transformers cannot make a model of is no model's number: a wrong type, a wrong word.
    if (remarked || !one["loss"].is_number()) {
      ++said;
      continue;
    }
    const double theirs = one["loss"];
    EXPECT_NEAR(LossOnce(*config), theirs, 1e-5 * theirs) << changes;
    ++followed;
  }
  EXPECT_GT(followed, 40);
  EXPECT_GT(losses_.size(), 8u);
  EXPECT_GT(said, 4);
}

INSTANTIATE_TEST_SUITE_P(Families, ConfigLossesTest,
                         testing::Values("gpt2", "llama", "mistral", "qwen2", "qwen3", "starcoder2",
                                         "gpt_neox", "gemma", "stablelm", "phi3", "olmo2",
                                         "granite", "opt", "gemma3_text", "falcon", "olmo3",
                                         "smollm3", "cohere", "gemma2", "bloom", "mpt"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace terrace
