// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/megatron.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/nearest.h"
#include "base/status_macros.h"
#include "coordinator/import/megatron_flags.h"
#include "coordinator/import/shell_words.h"

namespace terrace {
namespace {

constexpr size_t kWordsMax = 4000;

// Flags in the order written, with what follows them up to the next flag.
struct Flag {
  std::string name;
  std::vector<std::string> values;
  std::string value() const { return absl::StrJoin(values, " "); }
};

// Learning rates may be negative nowhere, so a dash begins a flag.
std::vector<Flag> FlagsOf(const std::vector<std::string>& words) {
  std::vector<Flag> flags;
  for (const std::string& word : words) {
    if (word.starts_with("--")) {
      const size_t equals = word.find('=');
      flags.push_back({.name = word.substr(2, equals == std::string::npos ? equals : equals - 2)});
      if (equals != std::string::npos) flags.back().values.push_back(word.substr(equals + 1));
    } else if (!flags.empty()) {
      flags.back().values.push_back(word);
    }
  }
  return flags;
}

class Importer {
 public:
  Importer(const std::vector<Flag>& flags, const ImportContext& context)
      : flags_(flags), context_(context) {
    for (const Flag& flag : flags) by_name_[flag.name] = &flag;
  }

  absl::StatusOr<SpecDraft> Run() {
    for (const Flag& flag : flags_) RETURN_IF_ERROR(Import(flag));
    if (context_.model.empty() && Given("num-layers")) RETURN_IF_ERROR(SetModel());
    RETURN_IF_ERROR(SetRecompute());
    RETURN_IF_ERROR(SetInterleave());
    if (!draft_.Has("train.precision")) draft_.Set("train.precision", "fp32");
    if (!draft_.Has("train.global_batch")) {
      const std::string micro = draft_.Get("layout.micro_batch");
      draft_.Set("train.global_batch", micro.empty() ? "1" : micro);
      draft_.Remark("train.global_batch is one micro batch: --global-batch-size was not given");
    }
    Complete(context_, &draft_);
    return std::move(draft_);
  }

 private:
  bool Given(const std::string& name) const { return by_name_.contains(name); }

  absl::StatusOr<int64_t> Number(const std::string& name, int64_t fallback) const {
    const auto it = by_name_.find(name);
    if (it == by_name_.end()) return fallback;
    int64_t number = 0;
    if (absl::SimpleAtoi(it->second->value(), &number) && number >= 0) return number;
    return absl::InvalidArgumentError(absl::StrCat("--", name, ": got '", it->second->value(),
                                                   "', must be a whole number of at least 0"));
  }

  absl::Status Import(const Flag& flag) {
    const auto& model = MegatronModelFlags();
    if (std::find(model.begin(), model.end(), flag.name) != model.end()) {
      if (!context_.model.empty()) {
        draft_.Automatic("--" + flag.name, flag.value(), "--model says what the model is");
      }
      return absl::OkStatus();
    }
    if (Special(flag)) return absl::OkStatus();
    for (const MegatronFlag& known : MegatronFlags()) {
      if (known.flag == flag.name) {
        Known(known, flag);
        return absl::OkStatus();
      }
    }
    draft_.Unknown("--" + flag.name, flag.value(), Suggestion(flag.name));
    return absl::OkStatus();
  }

  void Known(const MegatronFlag& known, const Flag& flag) {
    const std::string setting = "--" + flag.name;
    const std::string note(known.note);
    if (known.fate == Fate::kAutomatic) {
      draft_.Automatic(setting, flag.value(), note);
    } else if (known.fate == Fate::kAbsent) {
      const bool off = (flag.name == "attention-dropout" || flag.name == "hidden-dropout") &&
                       (flag.value() == "0" || flag.value() == "0.0");
      if (off) {
        draft_.Automatic(setting, flag.value(), note);
      } else {
        draft_.Absent(setting, flag.value(), note);
      }
    } else if (const size_t colon = known.target.find(": "); colon != std::string_view::npos) {
      draft_.Mapped(setting, flag.value(), known.target.substr(0, colon),
                    std::string(known.target.substr(colon + 2)), note);
    } else {
      draft_.Mapped(setting, flag.value(), known.target, flag.value(), note);
    }
  }

  // Flags whose values need more than being copied. Those read together are handled by the last of
  // them (SetRecompute, SetInterleave).
  bool Special(const Flag& flag) {
    const std::string setting = "--" + flag.name, value = flag.value();
    if (flag.name == "adam-beta1" || flag.name == "adam-beta2") {
      const auto beta = [this](const char* name, const char* otherwise) {
        return Given(name) ? by_name_.at(name)->value() : std::string(otherwise);
      };
      draft_.Mapped(
          setting, value, "train.optimizer.betas",
          absl::StrCat("[", beta("adam-beta1", "0.9"), ", ", beta("adam-beta2", "0.999"), "]"));
    } else if (flag.name == "lr-decay-style") {
      if (value == "constant" || value == "linear" || value == "cosine") {
        draft_.Mapped(setting, value, "train.schedule.name", value);
      } else {
        draft_.Absent(setting, value, "schedules here are constant, linear and cosine");
      }
    } else if (flag.name == "cp-comm-type") {
      const bool ulysses = value == "a2a";
      draft_.Mapped(setting, value, "layout.context_type", ulysses ? "ulysses" : "ring",
                    value == "p2p" || ulysses ? "" : "ring is as exact and sends less");
    } else if (flag.name == "data-path") {
      DataPath(flag);
    } else if (flag.name == "split") {
      Split(flag);
    } else if (flag.name == "tokenizer-model" || flag.name == "tokenizer-type") {
      Tokenizer(flag);
    } else if (flag.name == "optimizer-cpu-offload") {
      const std::string part = Given("optimizer-offload-fraction")
                                   ? by_name_.at("optimizer-offload-fraction")->value()
                                   : "1";
      double share = 1;
      const bool partly = absl::SimpleAtod(part, &share) && share < 1;
      draft_.Mapped(setting, value, "layout.offload.optimizer",
                    partly ? absl::StrCat("{device: ", 1 - share, ", host: ", share, "}") : "host");
    } else if (flag.name == "optimizer-offload-fraction") {
      draft_.Automatic(setting, value, "goes with --optimizer-cpu-offload");
    } else {
      return Deferred(flag);
    }
    return true;
  }

  static bool Deferred(const Flag& flag) {
    return flag.name == "recompute-granularity" || flag.name == "recompute-method" ||
           flag.name == "recompute-num-layers" || flag.name == "recompute-modules" ||
           flag.name == "num-layers-per-virtual-pipeline-stage" ||
           flag.name == "num-virtual-stages-per-pipeline-rank";
  }

  // Prefixes of .bin and .idx pairs, each perhaps after a weight.
  void DataPath(const Flag& flag) {
    std::vector<std::string> paths;
    bool weighted = false;
    for (const std::string& word : flag.values) {
      double weight = 0;
      if (absl::SimpleAtod(word, &weight)) {
        weighted = true;
      } else {
        paths.push_back(word.ends_with(".idx") ? word : word + ".idx");
      }
    }
    draft_.Mapped(
        "--data-path", flag.value(), "data.train",
        paths.size() == 1 ? paths[0] : absl::StrCat("[", absl::StrJoin(paths, ", "), "]"),
        weighted ? "weights of the mixture are left out: files are read by their sizes" : "");
  }

  void Split(const Flag& flag) {
    double parts[3] = {0, 0, 0};
    const std::vector<std::string> words = [&] {
      std::vector<std::string> split;
      std::string word;
      for (const char c : flag.value() + ",") {
        if (c == ',') {
          split.push_back(word);
          word.clear();
        } else {
          word += c;
        }
      }
      return split;
    }();
    for (size_t i = 0; i < std::min<size_t>(3, words.size()); ++i) {
      if (!absl::SimpleAtod(words[i], &parts[i])) parts[i] = 0;
    }
    const double all = parts[0] + parts[1] + parts[2];
    if (all <= 0 || parts[1] <= 0) {
      draft_.Automatic("--split", flag.value(), "data.validation_fraction holds out 5 %");
      return;
    }
    draft_.Mapped("--split", flag.value(), "data.validation_fraction", absl::StrCat(parts[1] / all),
                  "test data are not set aside");
  }

  void Tokenizer(const Flag& flag) {
    const std::string setting = "--" + flag.name;
    if (flag.name == "tokenizer-type") {
      draft_.Automatic(setting, flag.value(),
                       "read off the tokenizer's file; .idx data are tokens already");
    } else {
      draft_.Mapped(setting, flag.value(), "data.tokenizer", flag.value());
    }
  }

  absl::Status SetRecompute() {
    if (!Given("recompute-granularity")) return absl::OkStatus();
    const std::string granularity = by_name_.at("recompute-granularity")->value();
    const std::string method =
        Given("recompute-method") ? by_name_.at("recompute-method")->value() : "";
    ASSIGN_OR_RETURN(const int64_t every, Number("recompute-num-layers", 1));
    if (granularity == "selective") {
      draft_.Mapped("--recompute-granularity", granularity, "layout.recompute", "selective",
                    "norms and activations; flash attention computes its scores again anyway");
      return absl::OkStatus();
    }
    if (method == "uniform" && every > 1) {
      draft_.Mapped("--recompute-granularity", granularity, "layout.recompute", "every");
      draft_.Mapped("--recompute-num-layers", absl::StrCat(every), "layout.recompute_every",
                    absl::StrCat(every));
      return absl::OkStatus();
    }
    draft_.Mapped("--recompute-granularity", granularity, "layout.recompute", "block",
                  method == "block" && every > 0
                      ? absl::StrCat("of all layers, not only ", every,
                                     " a stage: layout.recompute_layers says it layer by layer")
                      : "");
    return absl::OkStatus();
  }

  absl::Status SetInterleave() {
    ASSIGN_OR_RETURN(const int64_t per_chunk, Number("num-layers-per-virtual-pipeline-stage", 0));
    ASSIGN_OR_RETURN(int64_t chunks, Number("num-virtual-stages-per-pipeline-rank", 0));
    ASSIGN_OR_RETURN(const int64_t layers, Number("num-layers", 0));
    ASSIGN_OR_RETURN(const int64_t stages, Number("pipeline-model-parallel-size", 1));
    if (per_chunk > 0 && layers > 0) chunks = layers / std::max<int64_t>(1, stages) / per_chunk;
    if (chunks <= 1) return absl::OkStatus();
    draft_.Set("layout.schedule", "interleaved");
    draft_.Mapped(per_chunk > 0 ? "--num-layers-per-virtual-pipeline-stage"
                                : "--num-virtual-stages-per-pipeline-rank",
                  absl::StrCat(per_chunk > 0 ? per_chunk : chunks), "layout.interleave",
                  absl::StrCat(chunks), "with schedule: interleaved");
    return absl::OkStatus();
  }

  // A Hugging Face config of the family that the flags describe: with RMSNorm, SwiGLU and rotary
  // positions llama's, with LayerNorm, GELU and learned positions gpt2's.
  absl::Status SetModel() {
    ASSIGN_OR_RETURN(const int64_t layers, Number("num-layers", 0));
    ASSIGN_OR_RETURN(const int64_t hidden, Number("hidden-size", 0));
    ASSIGN_OR_RETURN(const int64_t heads, Number("num-attention-heads", 0));
    ASSIGN_OR_RETURN(const int64_t groups, Number("num-query-groups", heads));
    ASSIGN_OR_RETURN(const int64_t channels, Number("kv-channels", heads > 0 ? hidden / heads : 0));
    const bool gated = Given("swiglu");
    ASSIGN_OR_RETURN(
        const int64_t ffn,
        Number("ffn-hidden-size", gated ? (8 * hidden / 3 + 63) / 64 * 64 : 4 * hidden));
    ASSIGN_OR_RETURN(const int64_t sequence, Number("seq-length", 1024));
    ASSIGN_OR_RETURN(const int64_t positions, Number("max-position-embeddings", sequence));
    ASSIGN_OR_RETURN(const int64_t vocabulary, Number("vocab-size", 0));
    const bool rms = Given("normalization") && by_name_.at("normalization")->value() == "RMSNorm";
    if (gated != rms) {
      draft_.Remark(
          "the model is neither llama's (--swiglu --normalization RMSNorm) nor gpt2's (neither of "
          "them); "
          "import with --model");
      return absl::OkStatus();
    }
    nlohmann::ordered_json config;
    if (gated) {
      config = {{"model_type", Given("add-qkv-bias") ? "qwen2" : "llama"},
                {"hidden_size", hidden},
                {"num_hidden_layers", layers},
                {"num_attention_heads", heads},
                {"num_key_value_heads", Given("group-query-attention") ? groups : heads},
                {"head_dim", channels},
                {"intermediate_size", ffn},
                {"max_position_embeddings", positions},
                {"rms_norm_eps", Real("norm-epsilon", 1e-5)},
                {"rope_theta", Real("rotary-base", 10000)},
                {"hidden_act", "silu"},
                {"tie_word_embeddings", !Given("untie-embeddings-and-output-weights")}};
    } else {
      config = {{"model_type", "gpt2"}, {"n_embd", hidden},
                {"n_layer", layers},    {"n_head", heads},
                {"n_inner", ffn},       {"n_positions", positions},
                {"n_ctx", positions},   {"layer_norm_epsilon", Real("norm-epsilon", 1e-5)}};
    }
    config["vocab_size"] = vocabulary > 0 ? vocabulary : gated ? 32000 : 50257;
    config["initializer_range"] = Real("init-method-std", 0.02);
    draft_.Mapped(
        "--num-layers ...", absl::StrCat(layers, " layers of ", hidden), "model.config",
        config.dump(),
        vocabulary > 0 ? "" : "the vocabulary's size is a guess: --vocab-size was not given");
    return absl::OkStatus();
  }

  double Real(const std::string& name, double fallback) const {
    double number = fallback;
    if (Given(name) && !absl::SimpleAtod(by_name_.at(name)->value(), &number)) return fallback;
    return number;
  }

  static std::string Suggestion(std::string_view name) {
    std::vector<std::string_view> known = MegatronModelFlags();
    for (const MegatronFlag& flag : MegatronFlags()) known.push_back(flag.flag);
    const std::string_view nearest = Nearest(name, known);
    return nearest.empty() ? "no flag that the importer knows"
                           : absl::StrCat("no flag that the importer knows; is --",
                                          std::string(nearest), " meant?");
  }

  const std::vector<Flag>& flags_;
  const ImportContext& context_;
  std::map<std::string, const Flag*> by_name_;
  SpecDraft draft_;
};

}  // namespace

absl::StatusOr<SpecDraft> ImportMegatron(std::string_view flags, const ImportContext& context) {
  ASSIGN_OR_RETURN(const std::vector<std::string> words, ShellWords(flags));
  const std::vector<Flag> found = FlagsOf(words);
  if (found.empty() || words.size() > kWordsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("got ", found.empty() ? "no" : "too many", " flags, must be 1 to ", kWordsMax,
                     " words such as '--tensor-model-parallel-size 8 --micro-batch-size 1'"));
  }
  return Importer(found, context).Run();
}

}  // namespace terrace
