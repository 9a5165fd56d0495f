// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/megatron.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/nearest.h"
#include "base/status_macros.h"
#include "coordinator/import/megatron_flags.h"
#include "coordinator/import/megatron_line.h"
#include "coordinator/import/megatron_model.h"

namespace terrace {
namespace {

class Importer {
 public:
  Importer(const MegatronLine& line, const ImportContext& context)
      : line_(line), context_(context) {}

  absl::StatusOr<SpecDraft> Run() {
    for (const MegatronWords& flag : line_.flags()) RETURN_IF_ERROR(Import(flag));
    if (context_.model.empty() && line_.Given("num-layers"))
      RETURN_IF_ERROR(SetMegatronModel(line_, &draft_));
    RETURN_IF_ERROR(SetWarmup());
    RETURN_IF_ERROR(SetRecompute());
    RETURN_IF_ERROR(SetInterleave());
    if (line_.Given("fp8-format")) draft_.Set("train.precision", "fp8");  // over --bf16
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
  absl::Status Import(const MegatronWords& flag) {
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

  void Known(const MegatronFlag& known, const MegatronWords& flag) {
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
  bool Special(const MegatronWords& flag) {
    const std::string setting = "--" + flag.name, value = flag.value();
    if (flag.name == "adam-beta1" || flag.name == "adam-beta2") {
      const auto beta = [this](const char* name, const char* otherwise) {
        return line_.Given(name) ? line_.Value(name) : std::string(otherwise);
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
    } else if (flag.name == "sequence-parallel" && TensorRanks() == 1) {
      draft_.Automatic(setting, value,
                       "off with one tensor-parallel rank, as Megatron-LM turns it off");
    } else if (flag.name == "fp8-format") {
      draft_.Mapped(setting, value, "train.precision", "fp8",
                    value == "hybrid" ? "" : "gradients are E5M2, as in the hybrid format");
    } else if (flag.name == "data-path") {
      DataPath(flag);
    } else if (flag.name == "split") {
      Split(flag);
    } else if (flag.name == "tokenizer-model" || flag.name == "tokenizer-type") {
      Tokenizer(flag);
    } else if (flag.name == "optimizer-cpu-offload") {
      const std::string part = line_.Given("optimizer-offload-fraction")
                                   ? line_.Value("optimizer-offload-fraction")
                                   : "1";
      double share = 1;
      const bool partly = absl::SimpleAtod(part, &share) && share < 1;
      draft_.Mapped(setting, value, "layout.offload.optimizer",
                    partly ? absl::StrCat("{device: ", 1 - share, ", host: ", share, "}") : "host");
    } else if (flag.name == "optimizer-offload-fraction") {
      draft_.Automatic(setting, value, "goes with --optimizer-cpu-offload");
    } else if (flag.name == "nnodes") {
      Count(flag, "resources.nodes");
    } else if (flag.name == "nproc_per_node" || flag.name == "nproc-per-node") {
      Count(flag, "resources.devices_per_node");
    } else {
      return Deferred(flag);
    }
    return true;
  }

  int64_t TensorRanks() const {
    int64_t ranks = 1;
    const char* flag = "tensor-model-parallel-size";
    const bool known = line_.Given(flag) && absl::SimpleAtoi(line_.Value(flag), &ranks);
    return known ? ranks : 1;
  }

  // Of the launcher, often a variable of the shell.
  void Count(const MegatronWords& flag, std::string_view key) {
    int64_t count = 0;
    if (absl::SimpleAtoi(flag.value(), &count) && count > 0) {
      draft_.Mapped("--" + flag.name, flag.value(), key, absl::StrCat(count));
    } else {
      draft_.Absent("--" + flag.name, flag.value(),
                    absl::StrCat("is no number; set ", std::string(key)));
    }
  }

  // Of the steps over which the rate decays.
  absl::Status SetWarmup() {
    if (!line_.Given("lr-warmup-fraction")) return absl::OkStatus();
    ASSIGN_OR_RETURN(const double fraction, line_.Real("lr-warmup-fraction", 0));
    ASSIGN_OR_RETURN(const int64_t steps, line_.Number("train-iters", 0));
    ASSIGN_OR_RETURN(const int64_t decay, line_.Number("lr-decay-iters", steps));
    const std::string value = line_.Value("lr-warmup-fraction");
    if (decay <= 0 || !(fraction >= 0 && fraction <= 1)) {
      draft_.Absent("--lr-warmup-fraction", value, "set train.schedule.warmup_steps");
    } else {
      draft_.Mapped("--lr-warmup-fraction", value, "train.schedule.warmup_steps",
                    absl::StrCat(std::llround(fraction * static_cast<double>(decay))));
    }
    return absl::OkStatus();
  }

  static bool Deferred(const MegatronWords& flag) {
    return flag.name == "lr-warmup-fraction" || flag.name == "recompute-granularity" ||
           flag.name == "recompute-method" || flag.name == "recompute-num-layers" ||
           flag.name == "recompute-modules" ||
           flag.name == "num-layers-per-virtual-pipeline-stage" ||
           flag.name == "num-virtual-stages-per-pipeline-rank";
  }

  // Prefixes of .bin and .idx pairs, each perhaps after a weight.
  void DataPath(const MegatronWords& flag) {
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

  void Split(const MegatronWords& flag) {
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

  void Tokenizer(const MegatronWords& flag) {
    const std::string setting = "--" + flag.name;
    if (flag.name == "tokenizer-type") {
      draft_.Automatic(setting, flag.value(),
                       "read off the tokenizer's file; .idx data are tokens already");
    } else {
      draft_.Mapped(setting, flag.value(), "data.tokenizer", flag.value());
    }
  }

  absl::Status SetRecompute() {
    if (!line_.Given("recompute-granularity")) return absl::OkStatus();
    const std::string granularity = line_.Value("recompute-granularity");
    const std::string method =
        line_.Given("recompute-method") ? line_.Value("recompute-method") : "";
    ASSIGN_OR_RETURN(const int64_t every, line_.Number("recompute-num-layers", 1));
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
    ASSIGN_OR_RETURN(const int64_t per_chunk,
                     line_.Number("num-layers-per-virtual-pipeline-stage", 0));
    ASSIGN_OR_RETURN(int64_t chunks, line_.Number("num-virtual-stages-per-pipeline-rank", 0));
    ASSIGN_OR_RETURN(const int64_t layers, line_.Number("num-layers", 0));
    ASSIGN_OR_RETURN(const int64_t stages, line_.Number("pipeline-model-parallel-size", 1));
    if (per_chunk > 0 && layers > 0) chunks = layers / std::max<int64_t>(1, stages) / per_chunk;
    if (chunks <= 1) return absl::OkStatus();
    draft_.Set("layout.schedule", "interleaved");
    draft_.Mapped(per_chunk > 0 ? "--num-layers-per-virtual-pipeline-stage"
                                : "--num-virtual-stages-per-pipeline-rank",
                  absl::StrCat(per_chunk > 0 ? per_chunk : chunks), "layout.interleave",
                  absl::StrCat(chunks), "with schedule: interleaved");
    return absl::OkStatus();
  }

  static std::string Suggestion(std::string_view name) {
    std::vector<std::string_view> known = MegatronModelFlags();
    for (const MegatronFlag& flag : MegatronFlags()) known.push_back(flag.flag);
    const std::string_view nearest = Nearest(name, known);
    return nearest.empty() ? "no flag that the importer knows"
                           : absl::StrCat("no flag that the importer knows; is --",
                                          std::string(nearest), " meant?");
  }

  const MegatronLine& line_;
  const ImportContext& context_;
  SpecDraft draft_;
};

}  // namespace

absl::StatusOr<SpecDraft> ImportMegatron(std::string_view flags, const ImportContext& context) {
  ASSIGN_OR_RETURN(const MegatronLine line, MegatronLine::Parse(flags));
  return Importer(line, context).Run();
}

}  // namespace terrace
