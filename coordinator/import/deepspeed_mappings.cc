// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/deepspeed_mappings.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/import/deepspeed.h"
#include "coordinator/import/deepspeed_values.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

void Map(const DeepSpeedValue& m, std::string_view key, const std::string& yaml,
         std::string note = "") {
  m.draft->Mapped(m.setting.path, m.setting.value.dump(), key, yaml, std::move(note));
}
void MapAsIs(const DeepSpeedValue& m, std::string_view key) { Map(m, key, m.setting.value.dump()); }
void MapWhole(const DeepSpeedValue& m, std::string_view key) {
  Map(m, key, absl::StrCat(WholeOf(m.setting.value)));
}

void Batch(const DeepSpeedValue& m) { MapWhole(m, "train.global_batch"); }
void MicroBatch(const DeepSpeedValue& m) { MapWhole(m, "layout.micro_batch"); }
void LogEvery(const DeepSpeedValue& m) { MapWhole(m, "train.log_every_steps"); }
void Seed(const DeepSpeedValue& m) { MapWhole(m, "train.seed"); }
void Tensor(const DeepSpeedValue& m) { MapWhole(m, "layout.tp"); }
void Ulysses(const DeepSpeedValue& m) {
  MapWhole(m, "layout.cp");
  if (WholeOf(m.setting.value) > 1) m.draft->Set("layout.context_type", "ulysses");
}
void Clip(const DeepSpeedValue& m) { MapAsIs(m, "train.clip_grad_norm"); }
void Lr(const DeepSpeedValue& m) { MapAsIs(m, "train.optimizer.lr"); }
void WeightDecay(const DeepSpeedValue& m) { MapAsIs(m, "train.optimizer.weight_decay"); }
void Betas(const DeepSpeedValue& m) { MapAsIs(m, "train.optimizer.betas"); }
void Warmup(const DeepSpeedValue& m) { MapWhole(m, "train.schedule.warmup_steps"); }
void Steps(const DeepSpeedValue& m) { MapWhole(m, "train.steps"); }
bool IsOfType(const Json& config, std::string_view name) {
  const Json type = At(config, "/optimizer/type");
  return type.is_string() && absl::AsciiStrToLower(type.get<std::string>()) == name;
}
bool IsMuon(const Json& config) { return IsOfType(config, "muon"); }

// torch.optim.Adafactor has a pair: of squares, and of the size of a tensor.
void Epsilon(const DeepSpeedValue& m) {
  if (!IsOfType(m.config, "adafactor")) return MapAsIs(m, "train.optimizer.epsilon");
  const Json& pair = m.setting.value;
  if (!pair.is_array() || pair.size() != 2 || !pair[1].is_number()) {
    m.draft->Absent(m.setting.path, pair.dump(), "must be two numbers");
    return;
  }
  Map(m, "train.optimizer.least_scale", pair[1].dump(),
      "train.optimizer.epsilon is left at 1e-30, which is added to squares");
}
void Beta2Decay(const DeepSpeedValue& m) { MapAsIs(m, "train.optimizer.beta2_decay"); }
void ClipThreshold(const DeepSpeedValue& m) { MapAsIs(m, "train.optimizer.clip_threshold"); }

void Zero(const DeepSpeedValue& m) {
  const bool adafactor = IsOfType(m.config, "adafactor");
  if ((adafactor || IsMuon(m.config)) && WholeOf(m.setting.value) == 3) {
    Map(m, "layout.zero", "2",
        adafactor ? "Adafactor updates whole tensors, which ZeRO 3 would cut"
                  : "Muon updates whole matrices, which ZeRO 3 would cut");
    return;
  }
  MapWhole(m, "layout.zero");
}
void Persistence(const DeepSpeedValue& m) { MapWhole(m, "layout.persistent_parameters"); }

std::string TypeName(const Json& value) { return absl::AsciiStrToLower(value.get<std::string>()); }

void GradientType(const DeepSpeedValue& m, std::string_view key) {
  const std::string type = TypeName(m.setting.value);
  if (type != "fp32" && type != "fp16" && type != "bf16") {
    *m.must_be = "\"fp32\", \"fp16\" or \"bf16\"";
    return;
  }
  Map(m, key, type == "fp32" ? "f32" : "bf16",
      type == "fp16" ? "fp16 is not offered; bf16 has the same size" : "");
}
void CommunicationType(const DeepSpeedValue& m) { GradientType(m, "formats.reduce"); }
void AccumulationType(const DeepSpeedValue& m) { GradientType(m, "formats.gradient"); }

// What pydantic makes of it; nothing, and a rule, for what is neither true nor false.
std::optional<bool> IsOn(const DeepSpeedValue& m) {
  const std::optional<bool> on = BoolOf(m.setting.value);
  if (!on) *m.must_be = "true or false";
  return on;
}

// Notes then that there is nothing to scale.
bool IsFp16Off(const DeepSpeedValue& m) {
  const Switch fp16 = SwitchOf(m.config, "/fp16/enabled");
  if (fp16 == Switch::kOn) return false;
  m.draft->Automatic(m.setting.path, m.setting.value.dump(),
                     fp16 == Switch::kOff
                         ? "fp16 is off"
                         : "fp16 is undecided; train.loss_scale takes it with precision: fp16");
  return true;
}
void LossScaleFixed(const DeepSpeedValue& m) {
  if (!IsFp16Off(m)) MapAsIs(m, "train.loss_scale.fixed");
}
void LossScaleInitial(const DeepSpeedValue& m) {
  if (IsFp16Off(m)) return;
  // All digits: StrCat rounds to six, and what it makes of 2^20 is no power of two.
  Map(m, "train.loss_scale.initial",
      absl::StrFormat("%.17g", std::exp2(m.setting.value.get<double>())), "two to that power");
}
void LossScaleWindow(const DeepSpeedValue& m) {
  if (!IsFp16Off(m)) MapWhole(m, "train.loss_scale.window");
}
void LossScaleHysteresis(const DeepSpeedValue& m) {
  if (!IsFp16Off(m)) MapWhole(m, "train.loss_scale.hysteresis");
}
void LossScaleMin(const DeepSpeedValue& m) {
  if (!IsFp16Off(m)) MapAsIs(m, "train.loss_scale.min");
}

// Names of bitsandbytes, and of `optim` in the Trainer of transformers, in lower case.
bool IsAdam8Bit(std::string_view type) {
  for (const std::string_view known :
       {"adam8bit", "adamw8bit", "adamw_8bit", "adamw_bnb_8bit", "adamw_torch_8bit",
        "pagedadam8bit", "pagedadamw8bit", "paged_adamw_8bit"}) {
    if (type == known) return true;
  }
  return false;
}

bool IsAdam(std::string_view type) {
  return type == "adam" || type == "fusedadam" || type == "deepspeedcpuadam";
}

// DeepSpeed's Adam decouples the decay unless adam_w_mode says otherwise; its AdamW always does.
bool DecouplesDecay(const Json& config) {
  const Json mode = At(config, "/optimizer/params/adam_w_mode");
  return mode != false && mode != "false";
}

void OptimizerType(const DeepSpeedValue& m) {
  const std::string type = absl::AsciiStrToLower(m.setting.value.get<std::string>());
  const bool is_adam = IsAdam(type);
  if (is_adam && !DecouplesDecay(m.config)) {
    Map(m, "train.optimizer.name", "adam", "decay is part of the gradient (adam_w_mode false)");
  } else if (is_adam || type == "adamw") {
    Map(m, "train.optimizer.name", "adamw",
        type == "adam" ? "DeepSpeed's Adam decouples the decay as well (adam_w_mode)" : "");
  } else if (IsAdam8Bit(type)) {
    Map(m, "train.optimizer.name", "adamw",
        "with formats.moments: int8, the blocks of bitsandbytes' 8-bit AdamW");
    m.draft->Set("formats.moments", "int8");
  } else if (type == "lion" || type == "fusedlion" || type == "deepspeedcpulion") {
    Map(m, "train.optimizer.name", "lion");
  } else if (type == "sgd") {
    Map(m, "train.optimizer.name", "sgd");
  } else if (type == "muon") {
    Map(m, "train.optimizer.name", "muon",
        "matrices of layers by Muon with its own scale of steps, all else by AdamW at the same "
        "learning rate, which lr_scale in train.optimizer.groups changes; check weight_decay");
    m.draft->Set("train.optimizer.adjust_lr", "original");
  } else if (type == "adafactor") {
    Map(m, "train.optimizer.name", "adafactor",
        "in the order of transformers' Adafactor; torch's caps the learning rate of step t at "
        "1 / sqrt(t) as well");
  } else {
    m.draft->Absent(
        m.setting.path, m.setting.value.dump(),
        "optimizers here are adamw, adam, sgd, lion, muon, adafactor and came; check lr "
        "and weight_decay");
  }
}

void Bf16States(const DeepSpeedValue& m) {
  const std::optional<bool> on = IsOn(m);
  if (!on) return;
  if (*on) {
    Map(m, "formats.moments", "bf16");
  } else {
    m.draft->Automatic(m.setting.path, m.setting.value.dump(), "off, as here");
  }
}

// ZeRO++'s quantised gathers of weights; like DeepSpeed's, of stage 3 alone.
void QuantizedWeights(const DeepSpeedValue& m) {
  const std::optional<bool> on = IsOn(m);
  if (!on) return;
  const Json stage = At(m.config, "/zero_optimization/stage");
  if (!*on) {
    m.draft->Automatic(m.setting.path, m.setting.value.dump(), "off, as here");
  } else if (At(m.config, "/bf16/enabled") != true && At(m.config, "/fp16/enabled") != true) {
    m.draft->Absent(m.setting.path, m.setting.value.dump(),
                    "weights in fp32 are gathered as they are; formats.gather needs bf16 or fp16");
  } else if (stage == 3) {
    Map(m, "formats.gather", "int8", "blocks of 128 elements of the shard that a rank holds");
  } else {
    m.draft->Absent(m.setting.path, m.setting.value.dump(),
                    "weights are gathered for each use with stage 3 alone");
  }
}

void QuantizedGradients(const DeepSpeedValue& m) {
  const std::optional<bool> on = IsOn(m);
  if (!on) return;
  const Json stage = At(m.config, "/zero_optimization/stage");
  if (!*on) {
    m.draft->Automatic(m.setting.path, m.setting.value.dump(), "off, as here");
  } else if (stage == 1 || stage == 2 || stage == 3) {
    Map(m, "formats.reduce", "int4",
        "blocks of 128 elements; over several nodes in two levels, as there, with sums in 8 bits");
  } else {
    m.draft->Absent(m.setting.path, m.setting.value.dump(),
                    "gradients travel in 4 bits with stage 1, 2 or 3");
  }
}

// LoCo's error feedback (Xie et al. 2024, arXiv 2407.04480) of ZeRO++'s quantised gradients.
void ErrorFeedback(const DeepSpeedValue& m) {
  const auto absent = [&m](const char* why) {
    m.draft->Absent(m.setting.path, m.setting.value.dump(), why);
  };
  if (At(m.config, "/zero_optimization/zero_quantized_gradients") != true)
    return absent("only quantized gradients lose anything");
  if (At(m.config, "/fp16/enabled") == true)
    return absent("formats.residual does not go with precision fp16, whose loss scale changes");
  const Json hpz = At(m.config, "/zero_optimization/zero_hpz_partition_size");
  if (hpz.is_number_integer() && hpz > 1)
    return absent("formats.residual does not go with layout.shard_size");
  Map(m, "formats.residual", "bf16",
      "0.2 of the newest error in the average, as with err_beta 0.8; it is never reset");
}

void AdamWMode(const DeepSpeedValue& m) {
  const std::optional<bool> on = IsOn(m);
  if (!on) return;
  const Json type = At(m.config, "/optimizer/type");
  const bool is_adam = type.is_string() && IsAdam(TypeName(type));
  m.draft->Automatic(m.setting.path, m.setting.value.dump(),
                     *on       ? "as AdamW is"
                     : is_adam ? "as train.optimizer.name adam is"
                               : "without effect with this optimizer.type, whose decay is its own");
}
void Momentum(const DeepSpeedValue& m) {
  Map(m, "train.optimizer.momentum", m.setting.value.dump());
}
void Nesterov(const DeepSpeedValue& m) {
  const std::optional<bool> on = IsOn(m);
  if (!on) return;
  if (!IsMuon(m.config)) return Map(m, "train.optimizer.nesterov", *on ? "true" : "false");
  if (*on) {
    m.draft->Automatic(m.setting.path, m.setting.value.dump(), "as here");
  } else {
    m.draft->Absent(m.setting.path, m.setting.value.dump(), "Muon looks ahead here");
  }
}
void NewtonSchulzSteps(const DeepSpeedValue& m) { MapWhole(m, "train.optimizer.ns_steps"); }
// DeepSpeed's Muon has a learning rate for each of its two rules beside the common one.
void MuonRate(const DeepSpeedValue& m) {
  Map(m, "train.optimizer.lr", m.setting.value.dump(), "of both rules");
}
void AdamRate(const DeepSpeedValue& m) {
  m.draft->Absent(m.setting.path, m.setting.value.dump(),
                  "train.optimizer.lr is of both rules: set lr_scale in train.optimizer.groups for "
                  "tables, norms and biases");
}
void Dampening(const DeepSpeedValue& m) {
  if (m.setting.value == 0) {
    m.draft->Automatic(m.setting.path, m.setting.value.dump(), "as here");
  } else {
    m.draft->Absent(m.setting.path, m.setting.value.dump(), "momentum is not dampened here");
  }
}
void BiasCorrection(const DeepSpeedValue& m) {
  const std::optional<bool> on = IsOn(m);
  if (!on) return;
  if (*on) {
    m.draft->Automatic(m.setting.path, m.setting.value.dump(), "as AdamW is");
  } else {
    m.draft->Absent(m.setting.path, m.setting.value.dump(), "moments are always corrected here");
  }
}

void ScheduleType(const DeepSpeedValue& m) {
  const std::string type = m.setting.value.get<std::string>();
  const bool log =
      m.config.value(Json::json_pointer("/scheduler/params/warmup_type"), Json("log")) == "log";
  const char* note = log ? "the warm-up is linear here, logarithmic in DeepSpeed" : "";
  if (type == "WarmupLR") {
    Map(m, "train.schedule.name", "constant", note);
  } else if (type == "WarmupDecayLR") {
    Map(m, "train.schedule.name", "linear", note);
  } else if (type == "WarmupCosineLR") {
    Map(m, "train.schedule.name", "cosine", note);
  } else {
    m.draft->Absent(
        m.setting.path, m.setting.value.dump(),
        "train.schedule.name is constant, linear, cosine, wsd, inverse_sqrt, polynomial, "
        "exponential, cosine_restarts or one_cycle, each with a warm-up");
  }
}
void WarmupType(const DeepSpeedValue& m) {
  if (m.setting.value == "linear") {
    m.draft->Automatic(m.setting.path, "\"linear\"", "as the warm-up is here");
  } else {
    m.draft->Absent(m.setting.path, m.setting.value.dump(), "the warm-up is linear here");
  }
}
// Where the warm-up begins, and of WarmupDecayLR where the decay ends.
void WarmupMin(const DeepSpeedValue& m) {
  if (m.setting.value == 0) {
    m.draft->Automatic(m.setting.path, m.setting.value.dump(), "as here");
    return;
  }
  Map(m, "train.schedule.initial_lr", m.setting.value.dump());
  if (At(m.config, "/scheduler/type") == "WarmupDecayLR")
    m.draft->Set("train.schedule.min_lr", m.setting.value.dump());
}
// The scheduler sets the rate, whatever the optimizer says.
void WarmupMax(const DeepSpeedValue& m) {
  const Json lr = At(m.config, "/optimizer/params/lr");
  Map(m, "train.optimizer.lr", m.setting.value.dump(),
      lr.is_number() && lr != m.setting.value ? "counts before optimizer.params.lr, as in DeepSpeed"
                                              : "");
}
void CosMinRatio(const DeepSpeedValue& m) {
  const Json& lr = m.config.value(Json::json_pointer("/optimizer/params/lr"), Json());
  if (!lr.is_number()) {
    m.draft->Absent(m.setting.path, m.setting.value.dump(),
                    "set train.schedule.min_lr: the ratio times the learning rate");
    return;
  }
  // What a double keeps of a decimal fraction; StrCat keeps six digits.
  Map(m, "train.schedule.min_lr",
      absl::StrFormat("%.15g", lr.get<double>() * m.setting.value.get<double>()));
}

void AllreduceOp(const DeepSpeedValue& m) {
  const std::string op = absl::AsciiStrToLower(m.setting.value.get<std::string>());
  if (op == "mean" || op == "avg") {
    m.draft->Automatic(m.setting.path, m.setting.value.dump(), "gradients are means over tokens");
  } else {
    m.draft->Absent(m.setting.path, m.setting.value.dump(),
                    "gradients are means over tokens; for AdamW a sum differs in epsilon and "
                    "clipping only: multiply both by the number of ranks to compare");
  }
}

// Whether formats.gradient will be bf16, which may not be mapped yet.
bool HasBf16Gradients(const DeepSpeedValue& m) {
  const Json type = At(m.config, "/data_types/grad_accum_dtype");
  if (!type.is_string() || IsAuto(type)) return false;
  return TypeName(type) != "fp32" && AllowsBf16Gradients(*m.draft);
}

// DeepSpeed counts elements.
void Bucket(const DeepSpeedValue& m) {
  const bool bf16 = HasBf16Gradients(m);
  const int64_t element_bytes = bf16 ? 2 : 4;
  const int64_t most = INT64_MAX / element_bytes;
  const int64_t elements = std::clamp(WholeOf(m.setting.value), -most, most);
  Map(m, "layout.bucket_size", absl::StrCat(elements * element_bytes),
      bf16 ? "in bytes of bf16 gradients" : "in bytes of f32 gradients");
}
void ShardSize(const DeepSpeedValue& m) {
  if (WholeOf(m.setting.value) > 1) {
    MapWhole(m, "layout.shard_size");
  } else {
    m.draft->Automatic(m.setting.path, m.setting.value.dump(), "all ranks share the states");
  }
}

// Nothing for a word that is no device.
std::optional<std::string> TierOf(const DeepSpeedValue& m) {
  const Json& device = m.setting.value;
  if (device.is_null() || device == "none") return "device";
  if (device == "cpu") return "host";
  if (device == "nvme") return "nvme";
  *m.must_be = "\"none\", \"cpu\" or \"nvme\"";
  return std::nullopt;
}
void OffloadOptimizer(const DeepSpeedValue& m) {
  if (const auto tier = TierOf(m)) Map(m, "layout.offload.optimizer", *tier);
}
void PutParameters(const DeepSpeedValue& m, const std::string& tier) {
  const Json stage = At(m.config, "/zero_optimization/stage");
  const bool early = tier != "device" && stage.is_number() && stage < 3;
  Map(m, "layout.offload.parameter", tier,
      early ? "DeepSpeed offloads weights with stage 3 only; leave it out to have the same" : "");
  const std::string optimizer = m.draft->Get("layout.offload.optimizer");
  const bool nearer =
      optimizer.empty() || optimizer == "device" || (optimizer == "host" && tier == "nvme");
  if (tier != "device" && nearer) {
    m.draft->Set("layout.offload.optimizer", tier);
    m.draft->Remark(absl::StrCat("layout.offload.optimizer is ", tier,
                                 ": weights never rest farther away than the moments"));
  }
}
void OffloadParameter(const DeepSpeedValue& m) {
  if (const auto tier = TierOf(m)) PutParameters(m, *tier);
}

// Deprecated forms that DeepSpeed still reads.
void OldOffloadOptimizer(const DeepSpeedValue& m) {
  const std::optional<bool> on = IsOn(m);
  if (!on) return;
  if (*on) {
    Map(m, "layout.offload.optimizer", "host", "the old name of offload_optimizer.device: cpu");
  } else {
    m.draft->Automatic(m.setting.path, m.setting.value.dump(), "off");
  }
}
void OldOffloadParameter(const DeepSpeedValue& m) {
  const std::optional<bool> on = IsOn(m);
  if (!on) return;
  if (*on) {
    PutParameters(m, "host");
  } else {
    m.draft->Automatic(m.setting.path, m.setting.value.dump(), "off");
  }
}
void OldZero(const DeepSpeedValue& m) {
  const std::optional<bool> on = IsOn(m);
  if (!on) {
    *m.must_be = "an object with a stage, or true or false";
    return;
  }
  Map(m, "layout.zero", *on ? "1" : "0", "true is stage 1 in DeepSpeed, false is 0");
}

// Applies to what `device` says, which comes before it in the alphabet.
void OffloadRatio(const DeepSpeedValue& m) {
  const double ratio = m.setting.value.get<double>();
  const std::string tier = m.draft->Get("layout.offload.optimizer");
  if (tier.empty() || tier == "device" || ratio >= 1) {
    m.draft->Automatic(m.setting.path, m.setting.value.dump(),
                       "all of the optimizer's states go where device says");
    return;
  }
  Map(m, "layout.offload.optimizer",
      absl::StrCat("{device: ", 1 - ratio, ", ", tier, ": ", ratio, "}"));
}
// States of both kinds are striped over all paths here.
void NvmePath(const DeepSpeedValue& m) {
  Json paths = Json::array();
  for (const char* section :
       {"/zero_optimization/offload_optimizer", "/zero_optimization/offload_param"}) {
    const Json path = At(m.config, std::string(section) + "/nvme_path");
    if (path.is_string() && At(m.config, std::string(section) + "/device") == "nvme" &&
        std::find(paths.begin(), paths.end(), path) == paths.end()) {
      paths.push_back(path);
    }
  }
  const std::string section = m.setting.path.substr(0, m.setting.path.rfind('.'));
  if (paths.empty() || std::find(paths.begin(), paths.end(), m.setting.value) == paths.end()) {
    m.draft->Automatic(m.setting.path, m.setting.value.dump(),
                       "is for device: nvme, which " + section + " does not ask for");
  } else if (paths.size() == 1) {
    MapAsIs(m, "resources.nvme.paths");
  } else {
    Map(m, "resources.nvme.paths", paths.dump(),
        "weights and moments are striped over both drives, not kept apart");
  }
}
void BlockSize(const DeepSpeedValue& m) { MapWhole(m, "resources.nvme.block_bytes"); }
void QueueDepth(const DeepSpeedValue& m) { MapWhole(m, "resources.nvme.queue_depth"); }

void CpuCheckpointing(const DeepSpeedValue& m) {
  const std::optional<bool> on = IsOn(m);
  if (!on) return;
  if (*on) {
    Map(m, "layout.offload.activation", "host");
  } else {
    m.draft->Automatic(m.setting.path, "false",
                       "activations stay on the device unless layout.offload says otherwise");
  }
}
void Checkpoints(const DeepSpeedValue& m) {
  if (WholeOf(m.setting.value) > 0) {
    Map(m, "layout.recompute", "block", "each layer keeps its input only");
  } else {
    m.draft->Automatic(m.setting.path, m.setting.value.dump(), "none: layout.recompute is planned");
  }
}

}  // namespace

const std::map<std::string_view, DeepSpeedMapping>& DeepSpeedMappings() {
  static const auto* mappings = new std::map<std::string_view, DeepSpeedMapping>{
      {"train_batch_size", &Batch},
      {"train_micro_batch_size_per_gpu", &MicroBatch},
      {"gradient_clipping", &Clip},
      {"steps_per_print", &LogEvery},
      {"seed", &Seed},
      {"communication_data_type", &CommunicationType},
      {"data_types.grad_accum_dtype", &AccumulationType},
      {"gradient_allreduce_op", &AllreduceOp},
      {"sequence_parallel_size", &Ulysses},
      {"tensor_parallel.autotp_size", &Tensor},
      {"fp16.loss_scale", &LossScaleFixed},
      {"fp16.initial_scale_power", &LossScaleInitial},
      {"fp16.loss_scale_window", &LossScaleWindow},
      {"fp16.hysteresis", &LossScaleHysteresis},
      {"fp16.min_loss_scale", &LossScaleMin},
      {"bf16.bf16_optimizer_states", &Bf16States},
      {"optimizer.type", &OptimizerType},
      {"optimizer.params.lr", &Lr},
      {"optimizer.params.betas", &Betas},
      {"optimizer.params.eps", &Epsilon},
      {"optimizer.params.weight_decay", &WeightDecay},
      {"optimizer.params.beta2_decay", &Beta2Decay},
      {"optimizer.params.d", &ClipThreshold},
      {"optimizer.params.adam_w_mode", &AdamWMode},
      {"optimizer.params.momentum", &Momentum},
      {"optimizer.params.nesterov", &Nesterov},
      {"optimizer.params.ns_steps", &NewtonSchulzSteps},
      {"optimizer.params.muon_lr", &MuonRate},
      {"optimizer.params.adam_lr", &AdamRate},
      {"optimizer.params.dampening", &Dampening},
      {"optimizer.params.bias_correction", &BiasCorrection},
      {"scheduler.type", &ScheduleType},
      {"scheduler.params.warmup_num_steps", &Warmup},
      {"scheduler.params.warmup_max_lr", &WarmupMax},
      {"scheduler.params.warmup_min_lr", &WarmupMin},
      {"scheduler.params.warmup_type", &WarmupType},
      {"scheduler.params.total_num_steps", &Steps},
      {"scheduler.params.cos_min_ratio", &CosMinRatio},
      {"zero_optimization", &OldZero},
      {"zero_optimization.stage", &Zero},
      {"zero_optimization.reduce_bucket_size", &Bucket},
      {"zero_optimization.stage3_param_persistence_threshold", &Persistence},
      {"zero_optimization.param_persistence_threshold", &Persistence},
      {"zero_optimization.zero_quantized_weights", &QuantizedWeights},
      {"zero_optimization.zero_quantized_gradients", &QuantizedGradients},
      {"zero_optimization.zeropp_loco_param.err_beta", &ErrorFeedback},
      {"zero_optimization.zero_hpz_partition_size", &ShardSize},
      {"zero_optimization.mics_shard_size", &ShardSize},
      {"zero_optimization.cpu_offload", &OldOffloadOptimizer},
      {"zero_optimization.cpu_offload_param", &OldOffloadParameter},
      {"zero_optimization.cpu_offload_params", &OldOffloadParameter},
      {"zero_optimization.offload_optimizer.device", &OffloadOptimizer},
      {"zero_optimization.offload_optimizer.ratio", &OffloadRatio},
      {"zero_optimization.offload_optimizer.nvme_path", &NvmePath},
      {"zero_optimization.offload_param.device", &OffloadParameter},
      {"zero_optimization.offload_param.nvme_path", &NvmePath},
      {"aio.block_size", &BlockSize},
      {"aio.queue_depth", &QueueDepth},
      {"activation_checkpointing.cpu_checkpointing", &CpuCheckpointing},
      {"activation_checkpointing.number_checkpoints", &Checkpoints},
  };
  return *mappings;
}

}  // namespace terrace
