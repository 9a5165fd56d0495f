// SPDX-License-Identifier: Apache-2.0
#include "coordinator/model/family_keys.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "coordinator/model/config_keys.h"

namespace terrace {

// As FalconConfig and its blocks have it. In the newer architecture a key head's k and v follow its
// queries, and num_ln_in_parallel_attn says whether attention and MLP have a norm each.
void ReadFalcon(JsonReader& json, ModelConfig* config) {
  const bool newer = json.Bool("new_decoder_architecture", false);
  const bool one_key_head = json.Bool("multi_query", true) && !newer;
  const int64_t key_heads = json.Int("num_kv_heads", 1, kMaxHeads, config->heads);
  config->kv_heads = one_key_head ? 1 : key_heads;
  if (one_key_head && key_heads != 1 && key_heads != config->heads) {
    config->remarks.push_back(absl::StrCat("model.config: num_kv_heads: got ", key_heads,
                                           ", which falcon does not read beside multi_query: "
                                           "there is one"));
  } else if (!one_key_head && !newer && key_heads != config->heads) {
    json.Problem("num_kv_heads", absl::StrCat(key_heads),
                 absl::StrCat("num_attention_heads ", config->heads),
                 "or set new_decoder_architecture or multi_query");
  }
  const int64_t norms = json.Int("num_ln_in_parallel_attn", 1, 2, newer ? 2 : 1);
  const bool parallel = json.Bool("parallel_attn", true);
  if (newer && !parallel) {
    json.Problem("parallel_attn", "false", "true",
                 "blocks of new_decoder_architecture stand side by side");
  } else if (!newer && parallel && norms == 2) {
    json.Problem("num_ln_in_parallel_attn", "2", "1", "or set new_decoder_architecture");
  }
  config->parallel_residual = parallel;
  config->shared_norm = parallel && norms == 1;
}

namespace {

// As MptAttention and MptBlock read attn_config.
void ReadMptAttention(JsonReader& read, ModelConfig* config) {
  constexpr double kLeast = 1e-6, kMost = 1e6;
  if (read.Has("clip_qkv") && read.Real("clip_qkv", 0, kMost) != 0) {
    read.Problem("clip_qkv", ShownJson(read.object().at("clip_qkv")), "null",
                 "queries, keys and values that are clipped are not supported");
  }
  if (read.Has("softmax_scale"))
    config->attention_scale = read.Real("softmax_scale", kLeast, kMost);
  config->dropout.residual = config->dropout.attention = read.Real("attn_pdrop", 0, kMaxDropout, 0);
  if (!read.Bool("alibi", true)) {
    read.Problem("alibi", "false", "true",
                 "transformers lets scores fall with the distance whatever stands here");
  }
  constexpr int64_t kLargest = 8;
  if (const int64_t most = read.Int("alibi_bias_max", 1, kMaxHeads, kLargest); most != kLargest)
    read.Problem("alibi_bias_max", absl::StrCat(most), "8", "transformers reads no other");
  const std::string heads = read.String("attn_type", "multihead_attention");
  if (heads != "multihead_attention") {
    read.Problem("attn_type", ShownJson(heads), "multihead_attention",
                 "transformers has as many key heads as heads");
  }
}

}  // namespace

void ReadMpt(JsonReader& json, std::vector<std::string>* problems, ModelConfig* config) {
  constexpr int64_t kTimes = 4;
  if (const int64_t times = json.Int("expansion_ratio", 1, kMaxHeads, kTimes); times != kTimes) {
    json.Problem("expansion_ratio", absl::StrCat(times), "4",
                 "in transformers the MLP has four times d_model");
  }
  const nlohmann::json* attention = json.Object("attn_config");
  if (attention == nullptr) return;
  JsonReader read(*attention, "attn_config.", problems);
  ReadMptAttention(read, config);
  JudgeConfigKeys(read, "mpt.attn_config", &config->remarks);
}

}  // namespace terrace
