// SPDX-License-Identifier: Apache-2.0
#include "coordinator/model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "coordinator/model/presets.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAre;

nlohmann::json Preset(std::string_view name) {
  return nlohmann::json::parse(FindPreset(name)->config_json);
}

ModelConfig Parsed(const nlohmann::json& json) {
  auto config = ParseModelConfig(json.dump(), 128);
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *std::move(config) : ModelConfig();
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
  json["hidden_act"] = "quick_gelu";
  json["rms_norm_eps"] = -1;
  EXPECT_THAT(
      ErrorOf(json.dump()),
      AllOf(HasSubstr("hidden_size: got \"big\""), HasSubstr("num_attention_heads: got 0"),
            HasSubstr("hidden_act: got \"quick_gelu\""), HasSubstr("rms_norm_eps: got -1")));
}

TEST(ConfigTest, HeadsMustDivide) {
  nlohmann::json json = Preset("gpt2");
  json["n_embd"] = 100;
  EXPECT_THAT(ErrorOf(json.dump()), HasSubstr("a multiple of n_head 12"));
  json = Preset("llama-3.2-1b");
  json["num_key_value_heads"] = 5;
  EXPECT_THAT(ErrorOf(json.dump()), HasSubstr("a divisor of num_attention_heads 32"));
  json = Preset("falcon-40b");
  json["num_kv_heads"] = 5;
  EXPECT_THAT(ErrorOf(json.dump()), HasSubstr("num_kv_heads: got 5, must be a divisor"));
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
  EXPECT_THAT(Parsed(json).window, ElementsAre(4096, 0));
  json["layer_types"] = {"linear_attention", "full_attention"};
  EXPECT_THAT(ErrorOf(json.dump()), HasSubstr("linear_attention"));
  json = Preset("qwen2.5-0.5b");
  json["num_hidden_layers"] = 2;
  json["use_sliding_window"] = true;
  json["layer_types"] = {"sliding_attention", "full_attention"};
  EXPECT_THAT(Parsed(json).window, ElementsAre(4096, 0));
  json["use_sliding_window"] = false;
  EXPECT_THAT(ErrorOf(json.dump()), HasSubstr("set use_sliding_window: true"));
}

// transformers' LlamaModel has one mask for all layers, and no window.
TEST(ConfigTest, LlamaReadsNoWindowAndThatIsSaid) {
  nlohmann::json json = Preset("llama-3.2-1b");
  json["sliding_window"] = 4096;
  json["layer_types"] = {"sliding_attention"};
  EXPECT_THAT(Parsed(json).window, testing::Each(0));
  EXPECT_THAT(Parsed(json).remarks,
              ElementsAre(HasSubstr("layer_types: got [\"sliding_attention\"], which the family"),
                          HasSubstr("sliding_window: got 4096, which the family")));
}

// The configuration classes of transformers, where a key is left out and where it is null.
TEST(ConfigTest, DefaultsAreThoseOfTheFamilysClass) {
  const nlohmann::json small = {{"vocab_size", 64},
                                {"hidden_size", 64},
                                {"intermediate_size", 8},
                                {"num_hidden_layers", 1},
                                {"num_attention_heads", 32}};
  const auto with = [&](const char* family, nlohmann::json more) {
    more.update(small);
    more["model_type"] = family;
    return Parsed(more);
  };
  EXPECT_EQ(with("llama", {{"head_dim", 2}}).max_positions, 2048);
  EXPECT_EQ(with("mistral", {{"head_dim", 2}}).max_positions, 131072);
  EXPECT_EQ(with("qwen2", {{"head_dim", 2}}).max_positions, 32768);
  EXPECT_EQ(with("qwen3", {{"head_dim", nullptr}}).head_dim, 128);
  EXPECT_EQ(with("mistral", {}).kv_heads, 8);
  EXPECT_EQ(with("mistral", {{"num_key_value_heads", nullptr}}).kv_heads, 32);
  EXPECT_THAT(with("mistral", {}).window, ElementsAre(4096));
  EXPECT_THAT(with("mistral", {{"sliding_window", nullptr}}).window, ElementsAre(0));
  EXPECT_THAT(with("qwen2", {{"use_sliding_window", true}, {"max_window_layers", 0}}).window,
              ElementsAre(4096));
}

// GPT2Config.attribute_map.
TEST(ConfigTest, Gpt2ReadsTheOtherNamesOfItsClass) {
  const nlohmann::json json = {{"model_type", "gpt2"},           {"hidden_size", 64},
                               {"num_hidden_layers", 2},         {"num_attention_heads", 4},
                               {"max_position_embeddings", 128}, {"n_inner", nullptr}};
  const ModelConfig config = Parsed(json);
  EXPECT_EQ(config.hidden, 64);
  EXPECT_EQ(config.layers, 2);
  EXPECT_EQ(config.heads, 4);
  EXPECT_EQ(config.max_positions, 128);
  EXPECT_EQ(config.intermediate, 256);
  EXPECT_THAT(config.remarks, IsEmpty());
  nlohmann::json both = json;
  both["n_embd"] = 64;
  EXPECT_EQ(Parsed(both).hidden, 64);
  both["n_embd"] = 128;
  EXPECT_THAT(ErrorOf(both.dump()), HasSubstr("hidden_size: got 64, must be 128, as n_embd is"));
  both = json;
  both["hidden_size"] = "big";
  EXPECT_THAT(ErrorOf(both.dump()), HasSubstr("hidden_size: got \"big\""));
}

TEST(ConfigTest, KeysThatARefusedRopeDidNotComeToAreNotSaidToBeUnread) {
  nlohmann::json json = Preset("llama-3.2-1b");
  json["rope_scaling"] = {{"full_attention", {{"rope_type", "default"}}}};
  json["partial_rotary_factor"] = 1.0;
  json["rope_theta"] = 1e6;
  json["original_max_position_embeddings"] = 8192;
  EXPECT_THAT(ErrorOf(json.dump()), AllOf(HasSubstr("all layers of these families have one rope"),
                                          testing::Not(HasSubstr("nothing reads"))));
}

TEST(ConfigTest, KeysThatNothingReadsAreSaidWithWhatIsMeant) {
  nlohmann::json json = Preset("gpt2");
  json["n_layers"] = 2;
  json["magic"] = false;
  EXPECT_THAT(Parsed(json).remarks,
              ElementsAre(HasSubstr("magic: got false, which nothing reads"),
                          HasSubstr("n_layers: got 2, which nothing reads; is n_layer meant?")));
  json = Preset("llama-3.2-1b");
  json["num_heads"] = 8;
  EXPECT_THAT(Parsed(json).remarks,
              ElementsAre(testing::EndsWith("num_heads: got 8, which nothing reads")))
      << "num_beams, which is near, has no effect";
  json.erase("num_heads");
  json["hiden_size"] = json["hidden_size"];
  json.erase("hidden_size");
  EXPECT_THAT(ErrorOf(json.dump()), AllOf(HasSubstr("hidden_size: got nothing"),
                                          HasSubstr("hiden_size: got 2048, which nothing reads; "
                                                    "is hidden_size meant?"),
                                          Not(HasSubstr("rope_theta"))));
}

TEST(ConfigTest, AnOldContextSizeIsNotReadAndThatIsSaid) {
  nlohmann::json json = Preset("gpt2");
  json["n_ctx"] = 1024;
  EXPECT_THAT(Parsed(json).remarks, IsEmpty());
  json["n_ctx"] = 512;
  EXPECT_EQ(Parsed(json).max_positions, 1024);
  EXPECT_THAT(Parsed(json).remarks, ElementsAre(HasSubstr("n_ctx: got 512, which transformers")));
}

TEST(ConfigTest, DropoutOfAttentionIsReadWhereTheFamilyHasIt) {
  nlohmann::json json = Preset("gpt2");
  EXPECT_EQ(Parsed(json).dropout.attention, 0.1) << "as the published config says";
  json["attn_pdrop"] = 0.2;
  json["summary_first_dropout"] = 0.1;
  EXPECT_THAT(Parsed(json).remarks, IsEmpty());
  EXPECT_EQ(Parsed(json).dropout.attention, 0.2);
  json = Preset("qwen3-0.6b");
  EXPECT_EQ(Parsed(json).dropout.attention, 0);
  json["attention_dropout"] = 0.25;
  EXPECT_THAT(Parsed(json).remarks, IsEmpty());
  EXPECT_EQ(Parsed(json).dropout.attention, 0.25);
  json = Preset("falcon-7b");
  json["attention_dropout"] = 0.25;
  EXPECT_THAT(Parsed(json).remarks, ElementsAre(HasSubstr("attention_dropout: got 0.25")));
  EXPECT_EQ(Parsed(json).dropout.attention, 0);
}

TEST(ConfigTest, DropoutOfEmbeddingsAndBlocksIsRead) {
  nlohmann::json json = Preset("gpt2");
  EXPECT_EQ(Parsed(json).dropout.residual, 0.1) << "as the published config says";
  json.erase("resid_pdrop");
  EXPECT_EQ(Parsed(json).dropout.residual, 0);
  json["resid_pdrop"] = 0.1;
  json["embd_pdrop"] = 0.25;
  json["attn_pdrop"] = 0;
  const ModelConfig config = Parsed(json);
  EXPECT_THAT(config.remarks, IsEmpty());
  EXPECT_EQ(config.dropout.residual, 0.1);
  EXPECT_EQ(config.dropout.embedding, 0.25);
  json["resid_pdrop"] = 1;
  EXPECT_THAT(ErrorOf(json.dump()), HasSubstr("resid_pdrop: got 1, must be"));
}

TEST(ConfigTest, KeysThatMakeAnotherModelAreRefusedOrSaid) {
  nlohmann::json json = Preset("gpt2");
  json["add_cross_attention"] = true;
  json["pruned_heads"] = {{"0", {1}}};
  EXPECT_THAT(ErrorOf(json.dump()), AllOf(HasSubstr("add_cross_attention: got true, must be false"),
                                          HasSubstr("pruned_heads: got {\"0\":[1]}")));
  json = Preset("qwen2.5-0.5b");
  json["attention_bias"] = false;
  json["pad_token_id"] = 0;
  json["quantization_config"] = {{"bits", 4}};
  EXPECT_THAT(Parsed(json).remarks,
              ElementsAre(HasSubstr("attention_bias: got false, which qwen2 does not read"),
                          HasSubstr("pad_token_id: got 0, whose embedding"),
                          HasSubstr("quantization_config: got {\"bits\":4}, which is not")));
  json = Preset("stablelm-2-1.6b");
  json["hidden_dropout"] = 0.1;
  json["pad_token_id"] = 0;
  EXPECT_THAT(Parsed(json).remarks, UnorderedElementsAre(HasSubstr("hidden_dropout: got 0.1"),
                                                         HasSubstr("pad_token_id: got 0")));
  EXPECT_EQ(Parsed(json).dropout.residual, 0);
  json["hidden_size"] = 2050;
  EXPECT_THAT(ErrorOf(json.dump()),
              HasSubstr("hidden_size: got 2050, must be a multiple of num_attention_heads 32"));
  json = Preset("pythia-70m");
  json["architectures"] = {"GPTNeoXForCausalLM"};
  EXPECT_THAT(Parsed(json).remarks, IsEmpty());
  json = Preset("llama-3.2-1b");
  json["architectures"] = {"LlamaForSequenceClassification"};
  EXPECT_THAT(Parsed(json).remarks, ElementsAre(HasSubstr("ForSequenceClassification")));
}

TEST(ConfigTest, TextOfTheFileReachesMessagesHarmless) {
  nlohmann::json json = Preset("gpt2");
  json["a\x1b[31m\n"] = "\xc3\xa9\x1b[0m";
  ASSERT_EQ(Parsed(json).remarks.size(), 1);
  EXPECT_THAT(Parsed(json).remarks[0],
              AllOf(Not(HasSubstr("\x1b")), Not(HasSubstr("\n")), HasSubstr("u00e9")));
}

TEST(ConfigTest, DeepValuesAreRefused) {
  const std::string deep = std::string(400'000, '[') + std::string(400'000, ']');
  for (const char* key : {"n_layer", "unknown"}) {
    EXPECT_THAT(ErrorOf(absl::StrCat("{\"model_type\": \"gpt2\", \"", key, "\": ", deep, "}")),
                HasSubstr("nested more than 64 deep"));
  }
}

TEST(ConfigTest, KeysThatStandTwiceAreSaid) {
  const auto config = ParseModelConfig(
      R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "n_layer": 3})", 128);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->layers, 3);
  EXPECT_THAT(config->remarks, ElementsAre(HasSubstr("n_layer stands twice; the last one counts")));
  EXPECT_THAT(ErrorOf("{\n \"model_type\": NaN}"), HasSubstr("(line 2, column"));
}

TEST(ConfigTest, OfGemma3ItsTextPartAloneIsRead) {
  EXPECT_THAT(ErrorOf(R"({"model_type":"gemma3","text_config":{},"vision_config":{}})"),
              AllOf(HasSubstr("texts and images are not supported"), HasSubstr("text_config")));
  // As the text_config of gemma-3-4b: the rest is the class's.
  const ModelConfig config = Parsed(nlohmann::json::parse(
      R"({"model_type":"gemma3_text","hidden_size":2560,"intermediate_size":10240)"
      R"(,"num_hidden_layers":34,"rope_scaling":{"factor":8.0,"rope_type":"linear"})"
      R"(,"sliding_window":1024})"));
  EXPECT_EQ(config.vocabulary, 262208);
  EXPECT_EQ(config.heads, 8);
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.rope.inverse_frequency[0], 1.0 / 8);
  EXPECT_EQ(config.local_rope.inverse_frequency[0], 1);
  EXPECT_THAT(config.remarks, ElementsAre(HasSubstr("pad_token_id: gemma3_text takes 0")));
}

TEST(ConfigTest, LayersOfOneModelMayDiffer) {
  nlohmann::json json = Preset("gemma-3-270m");
  json["num_hidden_layers"] = 3;
  json["sliding_window_pattern"] = 2;
  EXPECT_THAT(Parsed(json).window, ElementsAre(512, 0, 512));
  json["layer_types"] = {"full_attention", "full_attention", "sliding_attention"};
  EXPECT_THAT(Parsed(json).window, ElementsAre(0, 0, 512));
  json["sliding_window"] = nullptr;
  EXPECT_THAT(ErrorOf(json.dump()), HasSubstr("sliding_attention without a window"));
  json.erase("layer_types");
  EXPECT_THAT(ErrorOf(json.dump()), HasSubstr("sliding_window: got none"));
  json = Preset("smollm3-3b");
  json["num_hidden_layers"] = 2;
  json["no_rope_layers"] = {0, 1};
  json["use_sliding_window"] = true;
  json["sliding_window"] = 64;
  EXPECT_EQ(Parsed(json).unrotated, (std::vector<bool>{true, false}));
  EXPECT_THAT(Parsed(json).window, ElementsAre(64, 0));
  json["no_rope_layers"] = {0};
  EXPECT_THAT(ErrorOf(json.dump()), HasSubstr("no_rope_layers: got 1 entries, must be 2 entries"));
}

TEST(ConfigTest, NullCapsNothing) {
  nlohmann::json json = Preset("gemma-2-2b");
  json.erase("attn_logit_softcapping");
  json["final_logit_softcapping"] = nullptr;
  EXPECT_EQ(Parsed(json).score_softcap, 50);
  EXPECT_EQ(Parsed(json).logits_softcap, 0);
  json = Preset("gemma-3-270m");
  EXPECT_EQ(Parsed(json).logits_softcap, 0);
  json["final_logit_softcapping"] = nullptr;
  EXPECT_EQ(Parsed(json).logits_softcap, 0);
  json["final_logit_softcapping"] = 0;
  EXPECT_THAT(ErrorOf(json.dump()), HasSubstr("final_logit_softcapping: got 0"));
  json["final_logit_softcapping"] = 30.0;
  EXPECT_EQ(Parsed(json).logits_softcap, 30);
}

TEST(ConfigTest, BloomsNumbersHaveTwoNames) {
  const ModelConfig config = Parsed(nlohmann::json::parse(
      R"({"model_type":"bloom","n_embed":64,"num_hidden_layers":3,"num_attention_heads":4)"
      R"(,"vocab_size":100,"attention_softmax_in_fp32":true,"seq_length":2048,"unk_token_id":0})"));
  EXPECT_EQ(config.hidden, 64);
  EXPECT_EQ(config.layers, 3);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.intermediate, 256);
  EXPECT_THAT(config.remarks, IsEmpty());
  EXPECT_THAT(ErrorOf(R"({"model_type":"bloom","apply_residual_connection_post_layernorm":true})"),
              HasSubstr("apply_residual_connection_post_layernorm: got true, must be false"));
}

TEST(ConfigTest, MptsAttentionIsReadFromAnObject) {
  nlohmann::json json = Preset("mpt-7b");
  json["attn_config"] = {{"softmax_scale", 0.25}, {"attn_pdrop", 0.1}, {"attn_impl", "torch"}};
  EXPECT_EQ(Parsed(json).attention_scale, 0.25);
  EXPECT_EQ(Parsed(json).dropout.residual, 0.1);
  EXPECT_EQ(Parsed(json).dropout.attention, 0.1);
  EXPECT_THAT(Parsed(json).remarks, IsEmpty());
  json["attn_config"] = {{"clip_qkv", 6}, {"alibi_bias_max", 16}, {"prefix_lm", true}};
  json["expansion_ratio"] = 2;
  EXPECT_THAT(ErrorOf(json.dump()),
              AllOf(HasSubstr("attn_config.clip_qkv: got 6, must be null"),
                    HasSubstr("attn_config.alibi_bias_max: got 16, must be 8"),
                    HasSubstr("attn_config.prefix_lm: got true, must be false"),
                    HasSubstr("expansion_ratio: got 2, must be 4")));
  json = Preset("mpt-7b");
  json["attn_config"] = {{"qk_ln", true}, {"soft_max_scale", 0.5}};
  EXPECT_THAT(Parsed(json).remarks,
              ElementsAre(HasSubstr("attn_config.qk_ln: got true"),
                          HasSubstr("attn_config.soft_max_scale: got 0.5, which nothing reads; "
                                    "is softmax_scale meant?")));
}

TEST(ConfigTest, Olmo3SaysWhoseBaseANumberIs) {
  nlohmann::json json = Preset("olmo-3-7b");
  json["rope_theta"] = 10000.0;
  EXPECT_THAT(Parsed(json).remarks, ElementsAre(HasSubstr("rope_theta 10000 counts in layers")));
  json["rope_parameters"] = {{"rope_type", "default"}};
  EXPECT_THAT(ErrorOf(json.dump()), HasSubstr("full_attention and sliding_attention"));
}

TEST(ConfigTest, NoPresetHasAnythingToSay) {
  for (const struct Preset& preset : Presets()) {
    const auto config = ParseModelConfig(preset.config_json, 128);
    ASSERT_TRUE(config.ok()) << preset.name << ": " << config.status();
    EXPECT_THAT(config->remarks, IsEmpty()) << preset.name;
  }
}

TEST(ConfigTest, QwenBiasesAreOnQkvOnly) {
  const auto config = ParseModelConfig(Preset("qwen2.5-0.5b").dump(), 128);
  ASSERT_TRUE(config.ok());
  EXPECT_TRUE(config->qkv_bias);
  EXPECT_FALSE(config->attention_out_bias);
}

}  // namespace
}  // namespace terrace
