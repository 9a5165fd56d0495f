// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/megatron/model.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace terrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShownBytes = 80;

// Flags of a model that the importer does not make, unless their value is `harmless`.
struct Refused {
  std::string_view flag;
  std::string_view harmless;
  std::string_view what;
};
constexpr Refused kRefused[] = {
    {"rotary-percent", "1", "the models that this importer makes rotate the whole head"},
    {"rotary-interleaved", "", "the families rotate halves of a head, not neighbours"},
    {"no-rope-freq", "", "all layers rotate"},
    {"mrope-section", "", "positions are one number"},
    {"softmax-type", "vanilla", "attention has the plain softmax"},
    {"window-attn-skip-freq", "1", "the window is that of every layer"},
    {"squared-relu", "", "activations are GELU and SwiGLU"},
    {"quick-geglu", "", "activations are GELU and SwiGLU"},
    {"glu-linear-offset", "0", "SwiGLU has no offset"},
    {"activation-func-clamp-value", "", "activations are not clamped"},
    {"apply-residual-connection-post-layernorm", "", "the residual goes around the norm"},
    {"multi-latent-attention", "", "keys and values have no latent form"},
    {"qk-l2-norm", "", "queries and keys have RMSNorm or none"},
    {"num-experts", "0", "there are no experts"},
    {"heterogeneous-layers-config-path", "", "all layers are alike"},
    {"heterogeneous-layers-config-encoded-json", "", "all layers are alike"},
    {"hybrid-override-pattern", "", "all layers are attention and an MLP"},
    {"hybrid-attention-ratio", "0", "all layers are attention and an MLP"},
    {"hybrid-layer-pattern", "", "all layers are attention and an MLP"},
    {"experimental-attention-variant", "", "attention has the plain softmax over all keys"},
    {"linear-attention-type", "", "attention has the plain softmax over all keys"},
    {"linear-attention-freq", "", "attention has the plain softmax over all keys"},
    {"attention-output-gate", "", "attention's output has no gate"},
    {"head-wise-attn-gate", "", "attention's output has no gate"},
    {"qk-clip", "", "weights of queries and keys are not clipped"},
    {"rotary-base-per-layer", "", "all layers rotate by one base"},
    {"rope-type", "rope", "rotary positions are scaled by --use-rope-scaling or not at all"},
    {"enable-hyper-connections", "", "the residual is one stream"},
    {"use-mup", "", "rates and first weights do not follow the width"},
    {"decoder-num-layers", "0", "there is no encoder beside the decoder"},
    {"retro-add-retriever", "", "nothing is retrieved"},
    {"spec", "", "a specification in Python cannot be read"},
};

bool IsHarmless(const Refused& refused, const std::string& value) {
  if (refused.harmless.empty()) return false;
  double number = 0, harmless = 0;
  if (absl::SimpleAtod(value, &number) && absl::SimpleAtod(Absl(refused.harmless), &harmless))
    return number == harmless;
  return value == refused.harmless;
}

enum class Positions { kLearned, kRope, kOther };

class ModelReader {
 public:
  ModelReader(const MegatronLine& line, SpecDraft* draft) : line_(line), draft_(draft) {}

  absl::Status Run() {
    RETURN_IF_ERROR(ReadSizes());
    RETURN_IF_ERROR(ReadVocabulary());
    for (const Refused& refused : kRefused) {
      const std::string flag(refused.flag);
      if (line_.Given(flag) && !IsHarmless(refused, line_.Value(flag))) Problem(flag, refused.what);
    }
    const bool gated = line_.Given("swiglu");
    const bool rms = line_.Value("normalization") == "RMSNorm";
    const Positions positions = ReadPositions();
    Json config;
    if (gated && rms && positions == Positions::kRope) {
      RETURN_IF_ERROR(LlamaLike(&config));
    } else if (!gated && !rms && positions == Positions::kLearned) {
      Gpt2(&config);
    } else {
      Problem("normalization",
              absl::StrCat("the model has ", rms ? "RMSNorm, " : "LayerNorm, ",
                           gated ? "SwiGLU" : "GELU",
                           positions == Positions::kRope      ? " and rotary positions"
                           : positions == Positions::kLearned ? " and learned positions"
                                                              : " and other positions",
                           ", of which this importer makes no model: it knows llama, mistral, "
                           "qwen2 and qwen3 by RMSNorm "
                           "(--normalization RMSNorm), SwiGLU (--swiglu) and rotary positions "
                           "(--position-embedding-type rope), and gpt2, which has none of the "
                           "three; --model takes a config.json of another family"));
    }
    if (!problems_.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(absl::StrJoin(problems_, "\n"),
                       "\nthe flags describe a model that is not supported; import with --model to "
                       "take another one in its place"));
    }
    config["vocab_size"] = vocabulary_;
    config["initializer_range"] = range_;
    draft_->Mapped("--num-layers ...", absl::StrCat(layers_, " layers of ", hidden_),
                   "model.config", config.dump(), vocabulary_note_);
    return absl::OkStatus();
  }

 private:
  void Problem(const std::string& flag, std::string_view what) {
    const std::string value = line_.Value(flag);
    const std::string got = !line_.Given(flag) ? ""
                            : value.empty()
                                ? "got the flag, but "
                                : absl::StrCat("got '", CleanLine(value, kShownBytes), "', but ");
    problems_.push_back(absl::StrCat("--", flag, ": ", got, Absl(what)));
  }

  absl::Status ReadSizes() {
    const char* layers = line_.Given("num-layers") ? "num-layers" : "encoder-num-layers";
    ASSIGN_OR_RETURN(layers_, line_.Number(layers, 0));
    ASSIGN_OR_RETURN(hidden_, line_.Number("hidden-size", 0));
    ASSIGN_OR_RETURN(heads_, line_.Number("num-attention-heads", 0));
    for (const auto& [flag, size] :
         {std::pair("num-layers", layers_), std::pair("hidden-size", hidden_),
          std::pair("num-attention-heads", heads_)}) {
      if (size > 0) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag, ": got ", line_.Given(flag) ? "'0'" : "nothing",
                       ", must be a whole number above 0; or import with --model"));
    }
    // Without the first flag the second means nothing; without the second there is one group.
    ASSIGN_OR_RETURN(groups_, line_.Number("num-query-groups", 1));
    if (!line_.Given("group-query-attention")) groups_ = heads_;
    ASSIGN_OR_RETURN(channels_, line_.Number("kv-channels", hidden_ / heads_));
    // Megatron's own rounding: 8/3 of the hidden size, down to a multiple of 64.
    const int64_t inner = line_.Given("swiglu") ? 8 * hidden_ / 3 / 64 * 64 : 4 * hidden_;
    ASSIGN_OR_RETURN(ffn_, line_.Number("ffn-hidden-size", inner));
    ASSIGN_OR_RETURN(const int64_t sequence, line_.Number("seq-length", 1024));
    ASSIGN_OR_RETURN(positions_, line_.Number("max-position-embeddings", sequence));
    ASSIGN_OR_RETURN(epsilon_, line_.Real("norm-epsilon", 1e-5));
    ASSIGN_OR_RETURN(base_, line_.Real("rotary-base", 10000));
    ASSIGN_OR_RETURN(range_, line_.Real("init-method-std", 0.02));
    return absl::OkStatus();
  }

  // Megatron pads the vocabulary, and the loss is over the padded one.
  absl::Status ReadVocabulary() {
    ASSIGN_OR_RETURN(const int64_t given, line_.Number("vocab-size", 0));
    ASSIGN_OR_RETURN(const int64_t divisor, line_.Number("make-vocab-size-divisible-by", 128));
    ASSIGN_OR_RETURN(const int64_t ranks, line_.Number("tensor-model-parallel-size", 1));
    ASSIGN_OR_RETURN(const int64_t padded, line_.Number("padded-vocab-size", 0));
    const bool null_tokenizer = line_.Value("tokenizer-type") == "NullTokenizer";
    const int64_t tokens = given > 0               ? given + null_tokenizer
                           : line_.Given("swiglu") ? 32000
                                                   : 50257;
    const int64_t multiple = std::max<int64_t>(1, divisor) * std::max<int64_t>(1, ranks);
    vocabulary_ = padded > 0 ? padded : (tokens + multiple - 1) / multiple * multiple;
    if (padded == 0 && given == 0) {
      vocabulary_note_ = "the vocabulary's size is a guess: --vocab-size was not given";
    } else if (vocabulary_ != given) {
      vocabulary_note_ = absl::StrCat(
          "the vocabulary is padded to ", vocabulary_, ", as Megatron-LM does",
          padded > 0 ? ""
                     : absl::StrCat(" (a multiple of ", multiple,
                                    ", --make-vocab-size-divisible-by times tensor ranks)"));
    }
    return absl::OkStatus();
  }

  Positions ReadPositions() {
    const std::string type = line_.Given("use-rotary-position-embeddings") ? "rope"
                             : line_.Given("position-embedding-type")
                                 ? line_.Value("position-embedding-type")
                                 : "learned_absolute";
    if (type == "rope") return Positions::kRope;
    if (type == "learned_absolute") {
      if (line_.Given("no-position-embedding"))
        Problem("no-position-embedding", "positions are learned_absolute or rope, never none");
      return Positions::kLearned;
    }
    Problem("position-embedding-type", "positions are learned_absolute or rope");
    return Positions::kOther;
  }

  absl::Status LlamaLike(Json* config) {
    *config = {{"model_type", Family()},         {"hidden_size", hidden_},
               {"num_hidden_layers", layers_},   {"num_attention_heads", heads_},
               {"num_key_value_heads", groups_}, {"head_dim", channels_},
               {"intermediate_size", ffn_},      {"max_position_embeddings", positions_},
               {"rms_norm_eps", epsilon_},       {"rope_theta", base_},
               {"hidden_act", "silu"},           {"tie_word_embeddings", Tied()}};
    const std::string family = config->at("model_type");
    if (family == "llama" && !line_.Given("disable-bias-linear"))
      (*config)["attention_bias"] = (*config)["mlp_bias"] = true;
    SetWindow(family, config);
    return SetRopeScaling(config);
  }

  // By its biases: on all projections unless --disable-bias-linear takes them away.
  std::string Family() {
    const bool all = !line_.Given("disable-bias-linear");
    if (line_.Given("qk-layernorm")) {
      if (all || line_.Given("add-qkv-bias"))
        Problem("qk-layernorm",
                "with it (qwen3) there are no biases: give --disable-bias-linear, "
                "and no --add-qkv-bias");
      return "qwen3";
    }
    if (!all && line_.Given("add-qkv-bias")) return "qwen2";
    return line_.Given("window-size") ? "mistral" : "llama";
  }

  // "(left,right)": a token sees itself, `left` before and `right` after it.
  void SetWindow(const std::string& family, Json* config) {
    if (!line_.Given("window-size")) return;
    std::string value = line_.Value("window-size");
    std::erase_if(value, [](char c) { return c == '(' || c == ')' || c == ' '; });
    const size_t comma = value.find(',');
    int64_t left = 0, right = 0;
    if (comma == std::string::npos || !absl::SimpleAtoi(value.substr(0, comma), &left) ||
        !absl::SimpleAtoi(value.substr(comma + 1), &right) || left < 0 || right > 0) {
      Problem("window-size", "must be (left,0) with a whole number");
    } else if (family == "mistral" && !line_.Given("disable-bias-linear")) {
      Problem("window-size", "models with a window have no biases: give --disable-bias-linear");
    }
    (*config)["sliding_window"] = left + 1;
    if (family != "mistral") {
      (*config)["use_sliding_window"] = true;
      (*config)["max_window_layers"] = 0;
    }
  }

  absl::Status SetRopeScaling(Json* config) {
    ASSIGN_OR_RETURN(const double factor, line_.Real("rope-scaling-factor", 8));
    ASSIGN_OR_RETURN(const double linear, line_.Real("rotary-seq-len-interpolation-factor", 1));
    if (line_.Given("use-rope-scaling")) {
      if (linear != 1)
        Problem("rotary-seq-len-interpolation-factor", "--use-rope-scaling scales already");
      (*config)["rope_scaling"] = {{"rope_type", "llama3"},
                                   {"factor", factor},
                                   {"low_freq_factor", 1.0},
                                   {"high_freq_factor", 4.0},
                                   {"original_max_position_embeddings", 8192}};
    } else if (linear != 1) {
      (*config)["rope_scaling"] = {{"rope_type", "linear"}, {"factor", linear}};
    }
    return absl::OkStatus();
  }

  void Gpt2(Json* config) {
    if (line_.Given("disable-bias-linear"))
      Problem("disable-bias-linear", "gpt2 has a bias in every projection");
    if (line_.Given("qk-layernorm"))
      Problem("qk-layernorm", "gpt2 does not norm queries and keys; qwen3 does");
    if (line_.Given("window-size"))
      Problem("window-size", "gpt2 has no window; mistral, qwen2 and qwen3 have");
    if (groups_ != heads_)
      Problem("num-query-groups", "gpt2 has as many heads of keys as of queries");
    if (channels_ * heads_ != hidden_)
      Problem("kv-channels", "gpt2's heads share the hidden size evenly");
    // The fused kernel computes GELU by tanh, as --openai-gelu does; the plain one by erf.
    if (line_.Given("no-bias-gelu-fusion") && !line_.Given("openai-gelu"))
      Problem("no-bias-gelu-fusion", "gpt2's GELU is the one by tanh: give --openai-gelu");
    *config = {{"model_type", "gpt2"},
               {"n_embd", hidden_},
               {"n_layer", layers_},
               {"n_head", heads_},
               {"n_inner", ffn_},
               {"n_positions", positions_},
               {"layer_norm_epsilon", epsilon_},
               {"tie_word_embeddings", Tied()}};
  }

  bool Tied() const { return !line_.Given("untie-embeddings-and-output-weights"); }

  const MegatronLine& line_;
  SpecDraft* draft_;
  std::vector<std::string> problems_;
  std::string vocabulary_note_;
  int64_t layers_ = 0, hidden_ = 0, heads_ = 0, groups_ = 0, channels_ = 0, ffn_ = 0;
  int64_t positions_ = 0, vocabulary_ = 0;
  double epsilon_ = 0, range_ = 0, base_ = 0;
};

}  // namespace

absl::Status SetMegatronModel(const MegatronLine& line, SpecDraft* draft) {
  return ModelReader(line, draft).Run();
}

}  // namespace terrace
