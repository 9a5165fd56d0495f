// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/megatron_model.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace terrace {

absl::Status SetMegatronModel(const MegatronLine& line, SpecDraft* draft) {
  ASSIGN_OR_RETURN(const int64_t layers, line.Number("num-layers", 0));
  ASSIGN_OR_RETURN(const int64_t hidden, line.Number("hidden-size", 0));
  ASSIGN_OR_RETURN(const int64_t heads, line.Number("num-attention-heads", 0));
  ASSIGN_OR_RETURN(const int64_t groups, line.Number("num-query-groups", heads));
  ASSIGN_OR_RETURN(const int64_t channels,
                   line.Number("kv-channels", heads > 0 ? hidden / heads : 0));
  const bool gated = line.Given("swiglu");
  ASSIGN_OR_RETURN(
      const int64_t ffn,
      line.Number("ffn-hidden-size", gated ? (8 * hidden / 3 + 63) / 64 * 64 : 4 * hidden));
  ASSIGN_OR_RETURN(const int64_t sequence, line.Number("seq-length", 1024));
  ASSIGN_OR_RETURN(const int64_t positions, line.Number("max-position-embeddings", sequence));
  ASSIGN_OR_RETURN(const int64_t vocabulary, line.Number("vocab-size", 0));
  ASSIGN_OR_RETURN(const double epsilon, line.Real("norm-epsilon", 1e-5));
  ASSIGN_OR_RETURN(const double rotary_base, line.Real("rotary-base", 10000));
  ASSIGN_OR_RETURN(const double range, line.Real("init-method-std", 0.02));
  const bool rms = line.Given("normalization") && line.Value("normalization") == "RMSNorm";
  if (gated != rms) {
    draft->Remark(
        "the model is neither llama's (--swiglu --normalization RMSNorm) nor gpt2's (neither of "
        "them); "
        "import with --model");
    return absl::OkStatus();
  }
  nlohmann::ordered_json config;
  if (gated) {
    config = {{"model_type", line.Given("add-qkv-bias") ? "qwen2" : "llama"},
              {"hidden_size", hidden},
              {"num_hidden_layers", layers},
              {"num_attention_heads", heads},
              {"num_key_value_heads", line.Given("group-query-attention") ? groups : heads},
              {"head_dim", channels},
              {"intermediate_size", ffn},
              {"max_position_embeddings", positions},
              {"rms_norm_eps", epsilon},
              {"rope_theta", rotary_base},
              {"hidden_act", "silu"},
              {"tie_word_embeddings", !line.Given("untie-embeddings-and-output-weights")}};
  } else {
    config = {{"model_type", "gpt2"}, {"n_embd", hidden},
              {"n_layer", layers},    {"n_head", heads},
              {"n_inner", ffn},       {"n_positions", positions},
              {"n_ctx", positions},   {"layer_norm_epsilon", epsilon}};
  }
  config["vocab_size"] = vocabulary > 0 ? vocabulary : gated ? 32000 : 50257;
  config["initializer_range"] = range;
  draft->Mapped(
      "--num-layers ...", absl::StrCat(layers, " layers of ", hidden), "model.config",
      config.dump(),
      vocabulary > 0 ? "" : "the vocabulary's size is a guess: --vocab-size was not given");
  return absl::OkStatus();
}

}  // namespace terrace
