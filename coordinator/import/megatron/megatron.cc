// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/megatron/megatron.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/nearest.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "coordinator/import/megatron/data.h"
#include "coordinator/import/megatron/defaults.h"
#include "coordinator/import/megatron/flags.h"
#include "coordinator/import/megatron/groups.h"
#include "coordinator/import/megatron/layout.h"
#include "coordinator/import/megatron/line.h"
#include "coordinator/import/megatron/model.h"

namespace terrace {
namespace {

class Importer {
 public:
  Importer(const MegatronLine& line, const ImportContext& context)
      : line_(line), context_(context) {}

  absl::StatusOr<SpecDraft> Run() {
    RETURN_IF_ERROR(CheckContradictions());
    for (const MegatronWords& flag : line_.flags()) RETURN_IF_ERROR(Import(flag));
    if (context_.model.empty() && HasModel()) RETURN_IF_ERROR(SetMegatronModel(line_, &draft_));
    RETURN_IF_ERROR(SetWarmup());
    RETURN_IF_ERROR(SetMegatronLayout(line_, &draft_));
    if (line_.Given("fp8-format")) draft_.Set("train.precision", "fp8");  // over --bf16
    if (!draft_.Has("train.precision")) draft_.Set("train.precision", "fp32");
    if (!draft_.Has("train.global_batch")) {
      const std::string micro = draft_.Get("layout.micro_batch");
      draft_.SetText("train.global_batch", micro.empty() ? "1" : micro);
      draft_.Remark("train.global_batch is one micro batch: --global-batch-size was not given");
    }
    SetMegatronDefaults(line_, &draft_);
    Complete(context_, &draft_);
    RETURN_IF_ERROR(KeepEndsInBf16());
    return std::move(draft_);
  }

 private:
  absl::Status Import(const MegatronWords& flag) {
    const auto& model = MegatronModelFlags();
    if (std::find(model.begin(), model.end(), flag.name) != model.end()) {
      DescribesModel(flag);
      return absl::OkStatus();
    }
    if (Special(flag) || ImportMegatronData(flag, &draft_)) return absl::OkStatus();
    for (const MegatronFlag& known : MegatronFlags()) {
      if (known.flag == flag.name) {
        Known(known, flag);
        return absl::OkStatus();
      }
    }
    for (const MegatronFlag& group : MegatronGroups()) {
      if (flag.name.starts_with(group.flag)) {
        Known(group, flag);
        return absl::OkStatus();
      }
    }
    draft_.Unknown("--" + flag.name, flag.value(), Suggestion(flag.name));
    return absl::OkStatus();
  }

  // Megatron-LM refuses these too.
  absl::Status CheckContradictions() const {
    for (const auto& [flag, instead] : MegatronOldNames()) {
      if (!line_.Given(std::string(flag))) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("--", Absl(flag), ": got the flag, must be ", Absl(instead)));
    }
    for (const auto& [one, other] :
         {std::pair("bf16", "fp16"), std::pair("train-iters", "train-samples"),
          std::pair("lr-warmup-iters", "lr-warmup-fraction")}) {
      if (!line_.Given(one) || !line_.Given(other)) continue;
      return absl::InvalidArgumentError(absl::StrCat("--", one, ": got the flag beside --", other,
                                                     ", must be one of them; leave one out"));
    }
    return absl::OkStatus();
  }

  bool HasModel() const { return line_.Given("num-layers") || line_.Given("encoder-num-layers"); }

  void DescribesModel(const MegatronWords& flag) {
    const std::string setting = "--" + flag.name;
    if (!context_.model.empty()) {
      draft_.Automatic(setting, flag.value(), "--model says what the model is");
    } else if (HasModel()) {
      draft_.Automatic(setting, flag.value(), "describes the model: see model.config");
    } else {
      draft_.Absent(setting, flag.value(),
                    "no model is made without --num-layers; import with it or with --model");
    }
  }

  void MainGradients(const MegatronWords& flag) {
    const std::string setting = "--" + flag.name, value = flag.value();
    if (line_.Given("grad-reduce-in-bf16")) {
      draft_.Automatic(setting, value, "--grad-reduce-in-bf16 says the type of gradients");
    } else if (value == "bf16" || value == "fp32") {
      draft_.Mapped(setting, value, "formats.gradient", value == "bf16" ? "bf16" : "f32");
    } else {
      draft_.Absent(setting, value, "gradients are f32 or bf16 here: formats.gradient");
    }
  }

  void Known(const MegatronFlag& known, const MegatronWords& flag) {
    const std::string setting = "--" + flag.name;
    const std::string note(known.note);
    if (known.fate == Fate::kAutomatic) {
      draft_.Automatic(setting, flag.value(), note);
    } else if (known.fate == Fate::kAbsent) {
      double number = 1;
      const bool off = (absl::SimpleAtod(flag.value(), &number) && number == 0) ||
                       flag.value() == "constant";  // of an increment
      if (off) {
        draft_.Automatic(setting, flag.value(), note);
      } else {
        draft_.Absent(setting, flag.value(), note);
      }
    } else if (const size_t colon = known.target.find(": "); colon != std::string_view::npos) {
      draft_.Mapped(setting, flag.value(), known.target.substr(0, colon),
                    std::string(known.target.substr(colon + 2)), note);
    } else {
      draft_.MappedText(setting, flag.value(), known.target, flag.value(), note);
    }
  }

  // Flags of another optimizer or schedule than the one that is chosen, which nothing reads.
  bool OfAnother(const MegatronWords& flag, const std::string& setting) {
    const bool is_sgd = line_.Given("optimizer") && line_.Value("optimizer") == "sgd";
    const bool is_wsd = line_.Given("lr-decay-style") && line_.Value("lr-decay-style") == "WSD";
    const char* note = nullptr;
    if (is_sgd && flag.name.starts_with("adam-")) note = "without effect with --optimizer sgd";
    if (!is_sgd && flag.name == "sgd-momentum") note = "without effect without --optimizer sgd";
    const bool warms_up = line_.Given("lr-warmup-iters") || line_.Given("lr-warmup-fraction");
    if (!warms_up && flag.name == "lr-warmup-init") note = "without effect without a warm-up";
    if (!is_wsd && flag.name.starts_with("lr-wsd-"))
      note = "without effect without --lr-decay-style WSD";
    if (note != nullptr) draft_.Automatic(setting, flag.value(), note);
    return note != nullptr;
  }

  void DecayStyle(const MegatronWords& flag) {
    const std::string setting = "--" + flag.name, value = flag.value();
    if (value == "constant" || value == "linear" || value == "cosine") {
      draft_.Mapped(setting, value, "train.schedule.name", value);
    } else if (value == "inverse-square-root") {
      draft_.Mapped(setting, value, "train.schedule.name", "inverse_sqrt");
    } else if (value == "WSD") {
      draft_.Mapped(setting, value, "train.schedule.name", "wsd");
    } else {
      draft_.Absent(setting, value,
                    "schedules here are constant, linear, cosine, inverse_sqrt, wsd and others");
    }
  }

  // Flags whose values need more than being copied. Those read together are accounted for once all
  // are read (SetWarmup, SetMegatronLayout).
  bool Special(const MegatronWords& flag) {
    const std::string setting = "--" + flag.name, value = flag.value();
    if (OfAnother(flag, setting)) return true;
    if (flag.name == "adam-beta1" || flag.name == "adam-beta2") {
      const auto beta = [this](const char* name, const char* otherwise) {
        return line_.Given(name) ? line_.Value(name) : std::string(otherwise);
      };
      draft_.MappedTexts(setting, value, "train.optimizer.betas",
                         {beta("adam-beta1", "0.9"), beta("adam-beta2", "0.999")});
    } else if (flag.name == "lr-decay-style") {
      DecayStyle(flag);
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
    } else if (flag.name == "first-last-layers-bf16") {
      if (!line_.Given("fp8-format"))
        draft_.Automatic(setting, value, "without --fp8-format nothing is in fp8");
    } else if (flag.name == "num-layers-at-start-in-bf16" ||
               flag.name == "num-layers-at-end-in-bf16") {
      const bool keeps = line_.Given("first-last-layers-bf16") && line_.Given("fp8-format");
      draft_.Automatic(setting, value,
                       keeps ? "counted with --first-last-layers-bf16"
                             : "without effect unless --fp8-format and --first-last-layers-bf16 "
                               "are given");
    } else if (flag.name == "main-grads-dtype") {
      MainGradients(flag);
    } else if (flag.name == "lr-decay-iters" || flag.name == "train-samples") {
      StepsOf(flag);
    } else if (flag.name == "optimizer" && value == "adam") {
      draft_.Automatic(setting, value, "Megatron-LM's decouples the decay too");
    } else if (flag.name == "optimizer" && value == "sgd") {
      draft_.Mapped(setting, value, "train.optimizer.name", "sgd");
    } else if (flag.name == "use-megatron-fsdp" && line_.Given("data-parallel-sharding-strategy")) {
      draft_.Automatic(setting, value, "--data-parallel-sharding-strategy says the stage");
    } else if (flag.name == "data-parallel-sharding-strategy") {
      Sharding(flag);
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
    } else if (flag.name == "exp-avg-dtype" || flag.name == "exp-avg-sq-dtype") {
      Moments(flag);
    } else if (flag.name == "nnodes") {
      Count(flag, "resources.nodes");
    } else if (flag.name == "nproc_per_node" || flag.name == "nproc-per-node") {
      Count(flag, "resources.devices_per_node");
    } else {
      return flag.name == "lr-warmup-fraction" || IsMegatronLayoutFlag(flag.name);
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

  void StepsOf(const MegatronWords& flag) {
    const std::string setting = "--" + flag.name, value = flag.value();
    int64_t count = 0, batch = 0;
    if (flag.name == "lr-decay-iters") {
      if (value == line_.Value("train-iters")) {
        draft_.Automatic(setting, value, "the rate decays to the last step");
      } else {
        draft_.Absent(setting, value, "the rate decays to the last step, train.steps");
      }
    } else if (absl::SimpleAtoi(value, &count) &&
               absl::SimpleAtoi(line_.Value("global-batch-size"), &batch) && batch > 0 &&
               count >= batch && !line_.Given("rampup-batch-size")) {
      draft_.Mapped(setting, value, "train.steps", absl::StrCat(count / batch),
                    "samples / global_batch");
    } else {
      draft_.Absent(setting, value, "set train.steps: samples / global_batch");
    }
  }

  // Both moments have one format here.
  void Moments(const MegatronWords& flag) {
    const std::string setting = "--" + flag.name, value = flag.value();
    const auto type = [this](const char* name) {
      return line_.Given(name) ? line_.Value(name) : std::string("fp32");
    };
    if (type("exp-avg-dtype") != type("exp-avg-sq-dtype")) {
      draft_.Absent(setting, value,
                    "both moments have one format: set formats.moments to f32, bf16 or int8");
    } else if (value == "fp32" || value == "bf16") {
      draft_.Mapped(setting, value, "formats.moments", value == "fp32" ? "f32" : "bf16");
    } else if (value == "fp8") {
      draft_.Mapped(setting, value, "formats.moments", "int8",
                    "8 bits here are int8 blocks, each of 256 elements with its own scale");
    } else {
      draft_.Absent(setting, value,
                    "squares of gradients leave the range of fp16: formats.moments is f32, bf16 "
                    "or int8");
    }
  }

  // Megatron-LM keeps one layer at each end unless it is told how many.
  absl::Status KeepEndsInBf16() {
    if (!line_.Given("fp8-format") || !line_.Given("first-last-layers-bf16"))
      return absl::OkStatus();
    std::vector<std::string> ends;
    for (const auto& [name, end] : {std::pair("num-layers-at-start-in-bf16", "first"),
                                    std::pair("num-layers-at-end-in-bf16", "last")}) {
      ASSIGN_OR_RETURN(const int64_t count, line_.Number(name, 1));
      if (count > 0) ends.push_back(absl::StrCat(end, " ", count, ": bf16"));
    }
    draft_.Mapped("--first-last-layers-bf16", "", "train.precision",
                  ends.empty()
                      ? "fp8"
                      : absl::StrCat("{default: fp8, layers: {", absl::StrJoin(ends, ", "), "}}"));
    return absl::OkStatus();
  }

  // Of Megatron's own FSDP.
  void Sharding(const MegatronWords& flag) {
    const std::vector<std::string_view> stages = {"no_shard", "optim", "optim_grads",
                                                  "optim_grads_params"};
    const auto stage = std::find(stages.begin(), stages.end(), flag.value());
    if (stage == stages.end()) {
      draft_.Absent("--" + flag.name, flag.value(), "layout.zero is 0, 1, 2 or 3");
    } else {
      draft_.Mapped("--" + flag.name, flag.value(), "layout.zero",
                    absl::StrCat(stage - stages.begin()));
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
  RETURN_IF_ERROR(CheckUtf8("the flags", flags));
  ASSIGN_OR_RETURN(const MegatronLine line, MegatronLine::Parse(flags));
  return Importer(line, context).Run();
}

}  // namespace terrace
