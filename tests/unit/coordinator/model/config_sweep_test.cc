// No key of the families' configuration classes is ignored in silence: each of those recorded in
// tests/data/config_keys.json (record_config_keys.py) is fed with values that are not its default,
// and must be read, known to be without effect on training, refused or remarked on.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/model/config.h"
#include "coordinator/model/config_keys.h"
#include "coordinator/model/family.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

constexpr int64_t kLength = 16;

const Json& Recorded() {
  static const auto* recorded = [] {
    std::ifstream file(TERRACE_TEST_DATA "/config_keys.json");
    return new Json(Json::parse(file));
  }();
  return *recorded;
}

// Windows of qwen are on, so that what decides them matters.
Json BaseOf(const std::string& family) {
  if (family == "gpt2") {
    return {
        {"model_type", family}, {"n_embd", 32}, {"n_layer", 2}, {"n_head", 4}, {"vocab_size", 64}};
  }
  Json base = {{"model_type", family},
               {"hidden_size", 32},
               {"intermediate_size", 48},
               {"num_hidden_layers", 2},
               {"num_attention_heads", 4},
               {"num_key_value_heads", 2},
               {"vocab_size", 64},
               {"max_position_embeddings", 64},
               {"head_dim", 8}};
  if (family == "bloom") {
    return {{"model_type", family},
            {"hidden_size", 32},
            {"n_layer", 2},
            {"n_head", 4},
            {"vocab_size", 64}};
  }
  if (family == "mpt") {
    return {{"model_type", family}, {"d_model", 32},     {"n_layers", 2},
            {"n_heads", 4},         {"max_seq_len", 64}, {"vocab_size", 64}};
  }
  if (family == "gemma2") base["num_hidden_layers"] = 1;  // with a window, as long as none is told
  if (family == "opt" || family == "falcon") {
    for (const char* key : {"num_key_value_heads", "intermediate_size", "head_dim"})
      base.erase(key);
    base[family == "opt" ? "ffn_dim" : "ffn_hidden_size"] = 48;
  }
  if (family == "smollm3") {
    base.update(
        {{"use_sliding_window", true}, {"sliding_window", 4}, {"no_rope_layer_interval", 2}});
  }
  if (family == "gpt_neox" || family == "stablelm") {  // heads of 16, of which 4 are rotated
    base.erase("head_dim");
    base["num_attention_heads"] = 2;
  }
  if (family.starts_with("qwen"))
    base.update({{"use_sliding_window", true}, {"sliding_window", 4}, {"max_window_layers", 1}});
  return base;
}

// All that the compiler is told of a model.
std::string PrintOf(const ModelConfig& c) {
  return absl::StrCat(
      absl::StrJoin({c.vocabulary, c.hidden, c.layers, c.heads, c.kv_heads, c.head_dim,
                     c.intermediate, c.max_positions},
                    ","),
      " ", c.norm == NormKind::kRmsNorm, c.mlp == MlpKind::kGated, c.learned_positions,
      c.position_rows_before, c.qkv_bias, c.attention_out_bias, c.mlp_bias, c.qk_norm,
      c.tied_embeddings, c.conv1d_weights, " ", static_cast<int>(c.qkv),
      static_cast<int>(c.activation), c.parallel_residual, c.norm_unit_offset, " ",
      c.embedding_scale, " ", c.attention_scale, " ", c.residual_scale, " ", c.logits_scale, " ",
      c.norm_epsilon, " ", c.initializer_range, " ", c.rope.attention_factor, " ",
      absl::StrJoin(c.rope.inverse_frequency, ","), " ", absl::StrJoin(c.window, ","), " ",
      c.dropout.embedding, " ", c.dropout.residual, " ", c.dropout.attention, " ", c.shared_norm,
      c.norm_bias, c.norm_before, c.norm_after, c.interleaved_rope, " ",
      c.local_rope.attention_factor, " ", absl::StrJoin(c.local_rope.inverse_frequency, ","), " ",
      absl::StrJoin(c.unrotated, ","), " ", c.score_softcap, " ", c.logits_softcap, " ", c.alibi,
      c.embedding_norm);
}

// Values that a person might write there and that are not the default.
std::vector<Json> OtherValues(const std::string& key, const Json& fallback, const Json& base) {
  if (key == "rope_scaling" || key == "rope_parameters")
    return {{{"rope_type", "linear"}, {"factor", 2.0}}, {{"rope_type", "none_such"}}};
  if (key == "layer_types") return {{"sliding_attention", "full_attention"}, {"full_attention"}};
  if (key == "partial_rotary_factor") return {0.5};
  if (key == "original_max_position_embeddings") return {32};
  const Json& now = base.contains(key) ? base.at(key) : fallback;
  if (now.is_boolean()) return {!now.get<bool>()};
  if (now.is_number_integer()) return {now.get<int64_t>() * 2 + (now == 0 ? 4 : 0)};
  if (now.is_number()) return {now.get<double>() == 0 ? 0.25 : now.get<double>() / 2};
  if (now.is_string()) return {"another"};
  if (now.is_array() || now.is_object()) return {{{"0", {1}}}};
  return {true, 3, "another", {{"0", {1}}}};
}

// Empty: the key got its due.
std::string Silence(const std::string& family, const std::string& key, const Json& value) {
  Json json = BaseOf(family);
  const auto base = ParseModelConfig(json.dump(), kLength);
  json[key] = value;
  const auto changed = ParseModelConfig(json.dump(), kLength);
  EXPECT_TRUE(base.ok()) << base.status();
  if (!changed.ok()) {
    return absl::StrContains(changed.status().message(), key)
               ? ""
               : absl::StrCat("refused without a word of it: ", changed.status().message());
  }
  for (const std::string& remark : changed->remarks) {
    if (absl::StrContains(remark, key)) return "";
  }
  if (PrintOf(*base) != PrintOf(*changed)) return "";
  for (const ConfigKey& known : ConfigKeys()) {
    const bool of_family =
        known.families.empty() || known.families.find(family) != std::string_view::npos;
    if (known.key == key && of_family && known.fate == KeyFate::kNoEffect)
      return known.note.empty() ? "known to be without effect, for no reason" : "";
  }
  return "ignored in silence";
}

TEST(ConfigSweepTest, EveryKeyOfTheClassesGetsItsDue) {
  ASSERT_GE(Recorded().at("versions").size(), 2u) << "of transformers 4 and of 5";
  int fed = 0;
  for (const auto& [family, keys] : Recorded().at("keys").items()) {
    EXPECT_GE(keys.size(), 80u) << family;
    const Json base = BaseOf(family);
    for (const auto& [key, fallback] : keys.items()) {
      for (const Json& value : OtherValues(key, fallback, base)) {
        EXPECT_EQ(Silence(family, key, value), "") << family << "." << key << ": " << value;
        ++fed;
      }
    }
  }
  EXPECT_GT(fed, 400);
}

// A key of one family in the config of another decides nothing in transformers; somebody meant it.
TEST(ConfigSweepTest, KeysOfOtherFamiliesAreSaid) {
  std::set<std::string> all;
  for (const auto& [family, keys] : Recorded().at("keys").items()) {
    for (const auto& [key, fallback] : keys.items()) all.insert(key);
  }
  for (const auto& [family, keys] : Recorded().at("keys").items()) {
    const Json& aliases = Recorded().at("aliases").at(family);
    for (const std::string& key : all) {
      if (keys.contains(key) || aliases.contains(key)) continue;
      for (const Json& value : {Json(3), Json(true), Json("another")})
        EXPECT_EQ(Silence(family, key, value), "") << family << "." << key << ": " << value;
    }
  }
}

TEST(ConfigSweepTest, OtherNamesOfTheClassesAreRead) {
  for (const auto& [family, aliases] : Recorded().at("aliases").items()) {
    for (const auto& [alias, key] : aliases.items()) {
      Json named = BaseOf(family), other = named;
      named[key.get<std::string>()] = 4;
      other.erase(key.get<std::string>());
      other[alias] = 4;
      const auto a = ParseModelConfig(named.dump(), 4), b = ParseModelConfig(other.dump(), 4);
      ASSERT_EQ(a.ok(), b.ok()) << family << "." << alias << ": " << b.status();
      if (!a.ok()) continue;
      EXPECT_EQ(PrintOf(*a), PrintOf(*b)) << family << "." << alias;
    }
  }
}

// A class that takes a token for padding where the config names none treats its row as if the
// config had named it.
TEST(ConfigSweepTest, ATokenThatAClassTakesForPaddingIsSaid) {
  int said = 0;
  for (const Family& family : Families()) {
    const std::string name(family.name);
    SCOPED_TRACE(name);
    const Json& recorded = Recorded().at("keys").at(name).at("pad_token_id");
    EXPECT_EQ(family.pad_token, recorded.is_null() ? -1 : recorded.get<int64_t>());
    Json json = BaseOf(name);
    json["vocab_size"] = 262144;
    const auto remarks = [&] {
      const auto config = ParseModelConfig(json.dump(), kLength);
      EXPECT_TRUE(config.ok()) << config.status();
      return config.ok() ? absl::StrJoin(config->remarks, " ") : "";
    };
    if (recorded.is_null()) {
      EXPECT_THAT(remarks(), testing::Not(testing::HasSubstr("pad_token_id")));
    } else {
      EXPECT_THAT(remarks(),
                  testing::HasSubstr(absl::StrCat("pad_token_id: ", name, " takes ",
                                                  family.pad_token, " where none is named")));
      ++said;
    }
    json["pad_token_id"] = nullptr;
    EXPECT_THAT(remarks(), testing::Not(testing::HasSubstr("pad_token_id")));
  }
  EXPECT_GE(said, 4);
}

// The test can fail: a key that is in no table and no class is said, one that is not fed is not.
TEST(ConfigSweepTest, SilenceIsNoticed) {
  EXPECT_EQ(Silence("llama", "model_type", "llama"), "ignored in silence");
  EXPECT_EQ(Silence("llama", "brand_new_key", 1), "");
}

}  // namespace
}  // namespace terrace
