// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/deepspeed_mappings.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

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
void Epsilon(const DeepSpeedValue& m) { MapAsIs(m, "train.optimizer.epsilon"); }
void WeightDecay(const DeepSpeedValue& m) { MapAsIs(m, "train.optimizer.weight_decay"); }
void Betas(const DeepSpeedValue& m) { MapAsIs(m, "train.optimizer.betas"); }
void Warmup(const DeepSpeedValue& m) { MapWhole(m, "train.schedule.warmup_steps"); }
void Steps(const DeepSpeedValue& m) { MapWhole(m, "train.steps"); }
void Zero(const DeepSpeedValue& m) { MapWhole(m, "layout.zero"); }
void Persistence(const DeepSpeedValue& m) { MapWhole(m, "layout.persistent_parameters"); }

void CommunicationType(const DeepSpeedValue& m) {
  const bool half = m.setting.value != "fp32";
  Map(m, "layout.communication_dtype", half ? "bf16" : "fp32",
      m.setting.value == "fp16" ? "fp16 is not offered; bf16 has the same size" : "");
}

void Bf16(const DeepSpeedValue& m) {
  const bool on = m.setting.value.get<bool>();
  if (on || !m.draft->Has("train.precision")) Map(m, "train.precision", on ? "bf16" : "fp32");
}
void Fp16(const DeepSpeedValue& m) {
  if (!m.setting.value.get<bool>()) {
    m.draft->Automatic(m.setting.path, "false", "off, as here");
    return;
  }
  Map(m, "train.precision", "fp16");
}

// Notes then that there is nothing to scale.
bool IsFp16Off(const DeepSpeedValue& m) {
  const Json& enabled = m.config.value(Json::json_pointer("/fp16/enabled"), Json(false));
  if (enabled != false) return false;
  m.draft->Automatic(m.setting.path, m.setting.value.dump(), "fp16 is off");
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

void OptimizerType(const DeepSpeedValue& m) {
  const std::string type = absl::AsciiStrToLower(m.setting.value.get<std::string>());
  if (type == "adamw" || type == "adam" || type == "fusedadam" || type == "deepspeedcpuadam") {
    Map(m, "train.optimizer.name", "adamw",
        type == "adam" ? "DeepSpeed's Adam decouples the decay as well (adam_w_mode)" : "");
  } else {
    m.draft->Absent(m.setting.path, m.setting.value.dump(),
                    "AdamW is the optimizer here; check lr and weight_decay");
  }
}

void ScheduleType(const DeepSpeedValue& m) {
  const std::string type = m.setting.value.get<std::string>();
  if (type == "WarmupLR") {
    Map(m, "train.schedule.name", "constant", "after the warm-up, which is linear here");
  } else if (type == "WarmupDecayLR") {
    Map(m, "train.schedule.name", "linear");
  } else if (type == "WarmupCosineLR") {
    Map(m, "train.schedule.name", "cosine");
  } else {
    m.draft->Absent(m.setting.path, m.setting.value.dump(),
                    "schedules here are constant, linear and cosine, each with a warm-up");
  }
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

void Bucket(const DeepSpeedValue& m) {
  // DeepSpeed counts elements.
  Map(m, "layout.bucket_size", absl::StrCat(WholeOf(m.setting.value) * 4),
      "in bytes of fp32 gradients");
}
void ShardSize(const DeepSpeedValue& m) {
  if (WholeOf(m.setting.value) > 1) {
    MapWhole(m, "layout.shard_size");
  } else {
    m.draft->Automatic(m.setting.path, m.setting.value.dump(), "all ranks share the states");
  }
}

void OldOffload(const DeepSpeedValue& m) {
  if (m.setting.value.get<bool>()) Map(m, "layout.offload.optimizer", "host");
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
void OffloadParameter(const DeepSpeedValue& m) {
  const auto tier = TierOf(m);
  if (!tier) return;
  Map(m, "layout.offload.parameter", *tier);
  const std::string optimizer = m.draft->Get("layout.offload.optimizer");
  const bool nearer =
      optimizer.empty() || optimizer == "device" || (optimizer == "host" && *tier == "nvme");
  if (*tier != "device" && nearer) {
    m.draft->Set("layout.offload.optimizer", *tier);
    m.draft->Remark(absl::StrCat("layout.offload.optimizer is ", *tier,
                                 ": weights never rest farther away than the moments"));
  }
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
void NvmePath(const DeepSpeedValue& m) { MapAsIs(m, "resources.nvme.paths"); }
void BlockSize(const DeepSpeedValue& m) { MapWhole(m, "resources.nvme.block_bytes"); }
void QueueDepth(const DeepSpeedValue& m) { MapWhole(m, "resources.nvme.queue_depth"); }

void CpuCheckpointing(const DeepSpeedValue& m) {
  if (m.setting.value.get<bool>()) {
    Map(m, "layout.offload.activation", "host");
  } else {
    m.draft->Automatic(m.setting.path, "false",
                       "activations stay on the device unless layout.offload says otherwise");
  }
}
void Checkpoints(const DeepSpeedValue& m) {
  if (m.setting.value.is_number())
    Map(m, "layout.recompute", "block", "each layer keeps its input only");
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
      {"sequence_parallel_size", &Ulysses},
      {"tensor_parallel.autotp_size", &Tensor},
      {"bf16.enabled", &Bf16},
      {"bfloat16.enabled", &Bf16},
      {"fp16.enabled", &Fp16},
      {"fp16.loss_scale", &LossScaleFixed},
      {"fp16.initial_scale_power", &LossScaleInitial},
      {"fp16.loss_scale_window", &LossScaleWindow},
      {"fp16.hysteresis", &LossScaleHysteresis},
      {"fp16.min_loss_scale", &LossScaleMin},
      {"optimizer.type", &OptimizerType},
      {"optimizer.params.lr", &Lr},
      {"optimizer.params.betas", &Betas},
      {"optimizer.params.eps", &Epsilon},
      {"optimizer.params.weight_decay", &WeightDecay},
      {"scheduler.type", &ScheduleType},
      {"scheduler.params.warmup_num_steps", &Warmup},
      {"scheduler.params.warmup_max_lr", &Lr},
      {"scheduler.params.total_num_steps", &Steps},
      {"scheduler.params.cos_min_ratio", &CosMinRatio},
      {"zero_optimization.stage", &Zero},
      {"zero_optimization.reduce_bucket_size", &Bucket},
      {"zero_optimization.stage3_param_persistence_threshold", &Persistence},
      {"zero_optimization.zero_hpz_partition_size", &ShardSize},
      {"zero_optimization.mics_shard_size", &ShardSize},
      {"zero_optimization.cpu_offload", &OldOffload},
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

int64_t WholeOf(const Json& value) {
  constexpr double kMost = 9e18;
  if (value.is_number_unsigned()) {
    return static_cast<int64_t>(std::min<uint64_t>(value.get<uint64_t>(), INT64_MAX));
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  return std::llround(std::clamp(value.get<double>(), -kMost, kMost));
}

}  // namespace terrace
