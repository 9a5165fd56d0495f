// SPDX-License-Identifier: Apache-2.0
#include "coordinator/model/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "coordinator/model/presets.h"

namespace terrace {
namespace {

Model Build(std::string_view preset) {
  auto config = ParseModelConfig(FindPreset(preset)->config_json, 128);
  EXPECT_TRUE(config.ok()) << config.status();
  return BuildModel(*config);
}

TEST(ModelTest, Gpt2NamesAndShapesAreTheHubs) {
  const Model model = Build("gpt2");
  const Tensor* qkv = model.Find(TensorRole::kQkv, 3);
  ASSERT_NE(qkv, nullptr);
  EXPECT_EQ(qkv->name, "transformer.h.3.attn.c_attn.weight");
  EXPECT_EQ(qkv->shape, (std::vector<int64_t>{768, 2304}));
  EXPECT_EQ(model.Find(TensorRole::kPositionEmbedding)->shape, (std::vector<int64_t>{1024, 768}));
  EXPECT_EQ(model.tied.at("lm_head.weight"), "transformer.wte.weight");
  EXPECT_EQ(model.Find(TensorRole::kLmHead), nullptr);
}

TEST(ModelTest, Gpt2ResidualProjectionsStartSmaller) {
  const Model model = Build("gpt2");
  EXPECT_DOUBLE_EQ(model.Find(TensorRole::kMlpDown, 0)->stddev, 0.02 / std::sqrt(24.0));
  EXPECT_DOUBLE_EQ(model.Find(TensorRole::kMlpUp, 0)->stddev, 0.02);
}

TEST(ModelTest, Qwen3HasHeadNormsAndUntiedHead) {
  const Model model = Build("qwen3-8b");
  EXPECT_EQ(model.Find(TensorRole::kQNorm, 0)->name, "model.layers.0.self_attn.q_norm.weight");
  EXPECT_EQ(model.Find(TensorRole::kK, 0)->shape, (std::vector<int64_t>{1024, 4096}));
  EXPECT_EQ(model.Find(TensorRole::kLmHead)->name, "lm_head.weight");
  EXPECT_TRUE(model.tied.empty());
}

TEST(ModelTest, Starcoder2HasBiasesAndTwoMatricesInTheMlp) {
  const Model model = Build("starcoder2-3b");
  EXPECT_EQ(model.Find(TensorRole::kMlpUp, 1)->name, "model.layers.1.mlp.c_fc.weight");
  EXPECT_EQ(model.Find(TensorRole::kMlpUp, 1)->shape, (std::vector<int64_t>{12288, 3072}));
  EXPECT_EQ(model.Find(TensorRole::kKBias, 1)->shape, (std::vector<int64_t>{256}));
  EXPECT_EQ(model.Find(TensorRole::kFinalNormBias)->name, "model.norm.bias");
  EXPECT_EQ(model.Find(TensorRole::kMlpGate, 1), nullptr);
  EXPECT_EQ(model.config.window[29], 4096);
}

TEST(ModelTest, GptNeoxHasOneTensorOfQueriesKeysAndValuesAndItsOwnHead) {
  const Model model = Build("pythia-70m");
  const Tensor* qkv = model.Find(TensorRole::kQkv, 5);
  ASSERT_NE(qkv, nullptr);
  EXPECT_EQ(qkv->name, "gpt_neox.layers.5.attention.query_key_value.weight");
  EXPECT_EQ(qkv->shape, (std::vector<int64_t>{1536, 512}));
  EXPECT_EQ(model.Find(TensorRole::kLmHead)->name, "embed_out.weight");
  EXPECT_EQ(model.config.rope.rotated(), 16);
  EXPECT_TRUE(model.config.parallel_residual);
}

// The factor is 1 + weight, so that zero is the usual beginning.
TEST(ModelTest, GemmasNormsBeginAtZero) {
  const Model model = Build("gemma-2b");
  EXPECT_EQ(model.Find(TensorRole::kMlpNorm, 0)->init, Init::kZeros);
  EXPECT_EQ(model.Find(TensorRole::kFinalNorm)->init, Init::kZeros);
  EXPECT_EQ(model.Find(TensorRole::kQ, 0)->shape, (std::vector<int64_t>{2048, 2048}));
  EXPECT_DOUBLE_EQ(model.config.embedding_scale, std::sqrt(2048));
  EXPECT_EQ(model.tied.at("lm_head.weight"), "model.embed_tokens.weight");
}

TEST(ModelTest, Phi3HasOneTensorOfGateAndUp) {
  const Model model = Build("phi-4");
  const Tensor* gate = model.Find(TensorRole::kMlpGate, 39);
  ASSERT_NE(gate, nullptr);
  EXPECT_EQ(gate->name, "model.layers.39.mlp.gate_up_proj.weight");
  EXPECT_EQ(gate->shape, (std::vector<int64_t>{2 * 17920, 5120}));
  EXPECT_EQ(model.Find(TensorRole::kMlpUp, 39), nullptr);
  const Tensor* qkv = model.Find(TensorRole::kQkv, 0);
  EXPECT_EQ(qkv->name, "model.layers.0.self_attn.qkv_proj.weight");
  EXPECT_EQ(qkv->shape, (std::vector<int64_t>{(40 + 2 * 10) * 128, 5120}));
}

TEST(ModelTest, Olmo2NormsAfterItsBlocksAndOverAllHeads) {
  const Model model = Build("olmo-2-32b");
  EXPECT_EQ(model.Find(TensorRole::kAttentionAfterNorm, 0)->name,
            "model.layers.0.post_attention_layernorm.weight");
  EXPECT_EQ(model.Find(TensorRole::kMlpAfterNorm, 63)->name,
            "model.layers.63.post_feedforward_layernorm.weight");
  EXPECT_EQ(model.Find(TensorRole::kMlpNorm, 0), nullptr);
  EXPECT_EQ(model.Find(TensorRole::kQNorm, 0)->shape, (std::vector<int64_t>{5120}));
  EXPECT_EQ(model.Find(TensorRole::kKNorm, 0)->shape, (std::vector<int64_t>{8 * 128}));
  EXPECT_GT(model.Find(TensorRole::kMlpAfterNorm, 0), model.Find(TensorRole::kMlpDown, 0));
}

TEST(ModelTest, Gemma3NormsBeforeAndBehindItsBlocksAndHasAnglesOfItsOwnInLayersWithAWindow) {
  const Model model = Build("gemma-3-1b");
  EXPECT_EQ(model.Find(TensorRole::kAttentionNorm, 0)->name,
            "model.layers.0.input_layernorm.weight");
  EXPECT_EQ(model.Find(TensorRole::kAttentionAfterNorm, 0)->name,
            "model.layers.0.post_attention_layernorm.weight");
  EXPECT_EQ(model.Find(TensorRole::kMlpNorm, 0)->name,
            "model.layers.0.pre_feedforward_layernorm.weight");
  EXPECT_EQ(model.Find(TensorRole::kMlpAfterNorm, 25)->name,
            "model.layers.25.post_feedforward_layernorm.weight");
  EXPECT_EQ(model.Find(TensorRole::kQNorm, 0)->init, Init::kZeros);
  const ModelConfig& config = model.config;
  EXPECT_DOUBLE_EQ(config.attention_scale, 1.0 / 16);
  EXPECT_EQ(config.window[4], 512);
  EXPECT_EQ(config.window[5], 0);
  EXPECT_EQ(RopeOf(config, 4), &config.local_rope);
  EXPECT_EQ(RopeOf(config, 5), &config.rope);
  EXPECT_NEAR(config.local_rope.inverse_frequency[64], std::pow(1e4, -0.5), 1e-12);
  EXPECT_NEAR(config.rope.inverse_frequency[64], std::pow(1e6, -0.5), 1e-12);
}

TEST(ModelTest, FalconsBlocksShareANormOrHaveOneEach) {
  const Model one = Build("falcon-7b");
  EXPECT_TRUE(one.config.shared_norm);
  EXPECT_EQ(one.config.kv_heads, 1);
  EXPECT_EQ(one.Find(TensorRole::kAttentionNorm, 0)->name,
            "transformer.h.0.input_layernorm.weight");
  EXPECT_EQ(one.Find(TensorRole::kMlpNorm, 0), nullptr);
  EXPECT_EQ(one.Find(TensorRole::kQkv, 0)->shape, (std::vector<int64_t>{4544 + 2 * 64, 4544}));
  const Model two = Build("falcon-40b");
  EXPECT_EQ(two.config.kv_heads, 8);
  EXPECT_EQ(two.Find(TensorRole::kAttentionNorm, 0)->name, "transformer.h.0.ln_attn.weight");
  EXPECT_EQ(two.Find(TensorRole::kMlpNormBias, 59)->name, "transformer.h.59.ln_mlp.bias");
  EXPECT_EQ(two.tied.at("lm_head.weight"), "transformer.word_embeddings.weight");
}

TEST(ModelTest, Gemma2CapsScoresAndLogitsAndHasAWindowInEachSecondLayer) {
  const Model model = Build("gemma-2-27b");
  EXPECT_EQ(model.Find(TensorRole::kMlpAfterNorm, 45)->name,
            "model.layers.45.post_feedforward_layernorm.weight");
  const ModelConfig& config = model.config;
  EXPECT_DOUBLE_EQ(config.attention_scale, 1.0 / 12);  // 144 is not the size of a head
  EXPECT_EQ(config.score_softcap, 50);
  EXPECT_EQ(config.logits_softcap, 30);
  EXPECT_EQ(config.window[0], 4096);
  EXPECT_EQ(config.window[1], 0);
  EXPECT_EQ(RopeOf(config, 0), RopeOf(config, 1));
}

TEST(ModelTest, BloomNormsItsEmbeddingAndRotatesNothing) {
  const Model model = Build("bloom-560m");
  EXPECT_EQ(model.Find(TensorRole::kEmbeddingNorm)->name,
            "transformer.word_embeddings_layernorm.weight");
  EXPECT_EQ(model.Find(TensorRole::kEmbeddingNormBias)->shape, (std::vector<int64_t>{1024}));
  EXPECT_EQ(model.Find(TensorRole::kQkv, 0)->shape, (std::vector<int64_t>{3072, 1024}));
  EXPECT_EQ(model.Find(TensorRole::kMlpUp, 0)->shape, (std::vector<int64_t>{4096, 1024}));
  EXPECT_TRUE(model.config.alibi);
  EXPECT_FALSE(model.config.learned_positions);
  EXPECT_EQ(RopeOf(model.config, 0), nullptr);
}

TEST(ModelTest, MptHasNoBiasAtAll) {
  const Model model = Build("mpt-7b");
  for (const Tensor& tensor : model.tensors) EXPECT_TRUE(tensor.name.ends_with(".weight"));
  EXPECT_EQ(model.Find(TensorRole::kQkv, 31)->name, "transformer.blocks.31.attn.Wqkv.weight");
  EXPECT_EQ(model.Find(TensorRole::kMlpDown, 0)->shape, (std::vector<int64_t>{4096, 16384}));
  EXPECT_TRUE(model.config.alibi);
  EXPECT_EQ(model.config.qkv, QkvKind::kFused);
}

TEST(ModelTest, Olmo3ScalesTheAnglesOfLayersWithoutAWindowAlone) {
  const ModelConfig config = Build("olmo-3-7b").config;
  EXPECT_EQ(config.window[2], 4096);
  EXPECT_EQ(config.window[3], 0);
  EXPECT_DOUBLE_EQ(RopeOf(config, 3)->attention_factor, 1.2079441541679836);
  EXPECT_DOUBLE_EQ(RopeOf(config, 2)->attention_factor, 1);
}

TEST(ModelTest, Smollm3RotatesThreeLayersOfFour) {
  const ModelConfig config = Build("smollm3-3b").config;
  EXPECT_EQ(RopeOf(config, 2), &config.rope);
  EXPECT_EQ(RopeOf(config, 3), nullptr);
  EXPECT_EQ(RopeOf(config, 35), nullptr);
}

TEST(ModelTest, OptsFirstPositionIsTheThirdRow) {
  const Model model = Build("opt-125m");
  const Tensor* positions = model.Find(TensorRole::kPositionEmbedding);
  EXPECT_EQ(positions->name, "model.decoder.embed_positions.weight");
  EXPECT_EQ(positions->shape, (std::vector<int64_t>{2050, 768}));
  EXPECT_EQ(model.config.position_rows_before, 2);
  EXPECT_EQ(model.Find(TensorRole::kMlpNormBias, 11)->name,
            "model.decoder.layers.11.final_layer_norm.bias");
  EXPECT_EQ(model.Find(TensorRole::kFinalNorm)->name, "model.decoder.final_layer_norm.weight");
}

TEST(ModelTest, NamesAreUnique) {
  for (const Preset& preset : Presets()) {
    const Model model = Build(preset.name);
    std::set<std::string> names;
    for (const Tensor& tensor : model.tensors)
      EXPECT_TRUE(names.insert(tensor.name).second) << tensor.name;
  }
}

TEST(ModelTest, FlopsPerTokenOfGpt2AreSixTimesTheMatricesPlusCausalAttention) {
  const Model model = Build("gpt2");
  const double matrices = 12.0 * 12 * 768 * 768 + 50257.0 * 768;  // 12 h^2 a layer, and the head
  EXPECT_DOUBLE_EQ(FlopsPerToken(model, 128), 6 * matrices + 12.0 * 12 * 768 * 128 / 2);
}

TEST(ModelTest, AWindowLowersAttentionFlops) {
  Model model = Build("mistral-7b-v0.1");
  const double at_window = FlopsPerToken(model, 4096);
  const double beyond = FlopsPerToken(model, 8192);
  const double attention_at = 12.0 * 32 * 4096 * 4096 / 2;
  EXPECT_NEAR(beyond - at_window, attention_at / 2, 1);  // w (1 - w/2s): 3/4 w against 1/2 w
}

}  // namespace
}  // namespace terrace
