// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/deepspeed.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/nearest.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "coordinator/import/deepspeed_keys.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

// Deeper or longer than any configuration that means something.
constexpr int kDepthMax = 8;
constexpr size_t kKeysMax = 2000;

struct Setting {
  std::string path;
  Json value;
};

bool IsAuto(const Json& value) { return value.is_string() && value == "auto"; }

absl::Status Flatten(const Json& node, const std::string& path, int depth,
                     std::vector<Setting>* settings) {
  if (depth > kDepthMax || settings->size() > kKeysMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the configuration is nested deeper than ", kDepthMax,
                     " or has more than ", kKeysMax, " keys"));
  }
  if (!node.is_object()) {
    settings->push_back({path, node});
    return absl::OkStatus();
  }
  for (const auto& [key, value] : node.items()) {
    RETURN_IF_ERROR(
        Flatten(value, path.empty() ? key : absl::StrCat(path, ".", key), depth + 1, settings));
  }
  return absl::OkStatus();
}

std::string TierOf(const Json& device) {
  if (device == "cpu") return "host";
  return device == "nvme" ? "nvme" : "device";
}

bool Matches(std::string_view pattern, std::string_view path) {
  if (!pattern.ends_with(".*")) return pattern == path;
  pattern.remove_suffix(2);
  return path == pattern || (path.starts_with(pattern) && path[pattern.size()] == '.');
}

class Importer {
 public:
  Importer(const Json& config, const ImportContext& context) : config_(config), context_(context) {}

  absl::StatusOr<SpecDraft> Run() {
    std::vector<Setting> settings;
    RETURN_IF_ERROR(Flatten(config_, "", 0, &settings));
    for (const Setting& setting : settings) RETURN_IF_ERROR(Import(setting));
    RETURN_IF_ERROR(SetBatch());
    if (!draft_.Has("train.precision")) draft_.Set("train.precision", "fp32");
    Complete(context_, &draft_);
    return std::move(draft_);
  }

 private:
  using Handler = void (Importer::*)(const Setting&);

  static const std::map<std::string_view, Handler>& Handlers() {
    static const auto* handlers = new std::map<std::string_view, Handler>{
        {"train_batch_size", &Importer::Batch},
        {"train_micro_batch_size_per_gpu", &Importer::MicroBatch},
        {"gradient_clipping", &Importer::Clip},
        {"steps_per_print", &Importer::LogEvery},
        {"seed", &Importer::Seed},
        {"communication_data_type", &Importer::CommunicationType},
        {"sequence_parallel_size", &Importer::Ulysses},
        {"tensor_parallel.autotp_size", &Importer::Tensor},
        {"bf16.enabled", &Importer::Bf16},
        {"bfloat16.enabled", &Importer::Bf16},
        {"fp16.enabled", &Importer::Fp16},
        {"optimizer.type", &Importer::OptimizerType},
        {"optimizer.params.lr", &Importer::Lr},
        {"optimizer.params.betas", &Importer::Betas},
        {"optimizer.params.eps", &Importer::Epsilon},
        {"optimizer.params.weight_decay", &Importer::WeightDecay},
        {"scheduler.type", &Importer::ScheduleType},
        {"scheduler.params.warmup_num_steps", &Importer::Warmup},
        {"scheduler.params.warmup_max_lr", &Importer::Lr},
        {"scheduler.params.total_num_steps", &Importer::Steps},
        {"scheduler.params.cos_min_ratio", &Importer::CosMinRatio},
        {"zero_optimization.stage", &Importer::Zero},
        {"zero_optimization.reduce_bucket_size", &Importer::Bucket},
        {"zero_optimization.stage3_param_persistence_threshold", &Importer::Persistence},
        {"zero_optimization.zero_hpz_partition_size", &Importer::ShardSize},
        {"zero_optimization.mics_shard_size", &Importer::ShardSize},
        {"zero_optimization.cpu_offload", &Importer::OldOffload},
        {"zero_optimization.offload_optimizer.device", &Importer::OffloadOptimizer},
        {"zero_optimization.offload_optimizer.ratio", &Importer::OffloadRatio},
        {"zero_optimization.offload_optimizer.nvme_path", &Importer::NvmePath},
        {"zero_optimization.offload_param.device", &Importer::OffloadParameter},
        {"zero_optimization.offload_param.nvme_path", &Importer::NvmePath},
        {"aio.block_size", &Importer::BlockSize},
        {"aio.queue_depth", &Importer::QueueDepth},
        {"activation_checkpointing.cpu_checkpointing", &Importer::CpuCheckpointing},
        {"activation_checkpointing.number_checkpoints", &Importer::Checkpoints},
    };
    return *handlers;
  }

  absl::Status Import(const Setting& setting) {
    const auto handler = Handlers().find(setting.path);
    if (IsAuto(setting.value)) {
      draft_.Automatic(setting.path, "auto", "left to the planner or the default");
      return absl::OkStatus();
    }
    if (handler != Handlers().end()) {
      try {
        (this->*handler->second)(setting);
      } catch (const Json::exception&) {  // the value is of another type than the key has
        return absl::InvalidArgumentError(
            absl::StrCat(setting.path, ": got ", setting.value.dump(),
                         ", which is not of the type that DeepSpeed documents for this key"));
      }
      return absl::OkStatus();
    }
    for (const KnownKey& key : DeepSpeedKeysThatNeverWere()) {
      if (Matches(key.path, setting.path)) return Unknown(setting, std::string(key.note));
    }
    for (const KnownKey& key : DeepSpeedKeysWithoutCounterpart()) {
      if (!Matches(key.path, setting.path)) continue;
      if (key.fate == Fate::kAutomatic) {
        draft_.Automatic(setting.path, setting.value.dump(), std::string(key.note));
      } else {
        draft_.Absent(setting.path, setting.value.dump(), std::string(key.note));
      }
      return absl::OkStatus();
    }
    if (setting.path.starts_with("optimizer.params.") ||
        setting.path.starts_with("scheduler.params.")) {
      draft_.Absent(setting.path, setting.value.dump(),
                    "AdamW and the schedules here have no such parameter");
      return absl::OkStatus();
    }
    return Unknown(setting, Suggestion(setting.path));
  }

  absl::Status Unknown(const Setting& setting, std::string note) {
    draft_.Unknown(setting.path, setting.value.dump(), std::move(note));
    return absl::OkStatus();
  }

  static std::string Suggestion(std::string_view path) {
    std::vector<std::string_view> known;
    for (const auto& [key, handler] : Handlers()) known.push_back(key);
    for (const KnownKey& key : DeepSpeedKeysWithoutCounterpart()) known.push_back(key.path);
    const std::string_view nearest = Nearest(path, known);
    return nearest.empty()
               ? "no key of DeepSpeed"
               : absl::StrCat("no key of DeepSpeed; is ", std::string(nearest), " meant?");
  }

  void Map(const Setting& setting, std::string_view key, const std::string& yaml,
           std::string note = "") {
    draft_.Mapped(setting.path, setting.value.dump(), key, yaml, std::move(note));
  }
  void MapAsIs(const Setting& setting, std::string_view key) {
    Map(setting, key, setting.value.dump());
  }
  // The counts that DeepSpeed lets people write as 5e8.
  static int64_t Whole(const Json& value) {
    return value.is_number_integer() ? value.get<int64_t>()
                                     : static_cast<int64_t>(std::llround(value.get<double>()));
  }
  void MapWhole(const Setting& setting, std::string_view key) {
    Map(setting, key, absl::StrCat(Whole(setting.value)));
  }

  void Batch(const Setting& s) { MapWhole(s, "train.global_batch"); }
  void MicroBatch(const Setting& s) { MapWhole(s, "layout.micro_batch"); }
  void LogEvery(const Setting& s) { MapWhole(s, "train.log_every_steps"); }
  void Seed(const Setting& s) { MapWhole(s, "train.seed"); }
  void Tensor(const Setting& s) { MapWhole(s, "layout.tp"); }
  void Ulysses(const Setting& s) {
    MapWhole(s, "layout.cp");
    if (Whole(s.value) > 1) draft_.Set("layout.context_type", "ulysses");
  }
  void Clip(const Setting& s) { MapAsIs(s, "train.clip_grad_norm"); }
  void Lr(const Setting& s) { MapAsIs(s, "train.optimizer.lr"); }
  void Epsilon(const Setting& s) { MapAsIs(s, "train.optimizer.epsilon"); }
  void WeightDecay(const Setting& s) { MapAsIs(s, "train.optimizer.weight_decay"); }
  void Betas(const Setting& s) { MapAsIs(s, "train.optimizer.betas"); }
  void Warmup(const Setting& s) { MapWhole(s, "train.schedule.warmup_steps"); }
  void Steps(const Setting& s) { MapWhole(s, "train.steps"); }
  void Zero(const Setting& s) { MapWhole(s, "layout.zero"); }
  void Persistence(const Setting& s) { MapWhole(s, "layout.persistent_parameters"); }

  void CommunicationType(const Setting& s) {
    const bool half = s.value != "fp32";
    Map(s, "layout.communication_dtype", half ? "bf16" : "fp32",
        s.value == "fp16" ? "fp16 is not offered; bf16 has the same size" : "");
  }

  void Bf16(const Setting& s) {
    const bool on = s.value.get<bool>();
    if (on || !draft_.Has("train.precision")) Map(s, "train.precision", on ? "bf16" : "fp32");
  }
  void Fp16(const Setting& s) {
    if (!s.value.get<bool>()) {
      draft_.Automatic(s.path, "false", "off, as here");
      return;
    }
    Map(s, "train.precision", "bf16",
        "fp16 is not offered; bf16 has the same size and needs no loss scale");
  }

  void OptimizerType(const Setting& s) {
    const std::string type = absl::AsciiStrToLower(s.value.get<std::string>());
    if (type == "adamw" || type == "adam" || type == "fusedadam" || type == "deepspeedcpuadam") {
      Map(s, "train.optimizer.name", "adamw",
          type == "adam" ? "DeepSpeed's Adam decouples the decay as well (adam_w_mode)" : "");
    } else {
      draft_.Absent(s.path, s.value.dump(),
                    "AdamW is the optimizer here; check lr and weight_decay");
    }
  }

  void ScheduleType(const Setting& s) {
    const std::string type = s.value.get<std::string>();
    if (type == "WarmupLR") {
      Map(s, "train.schedule.name", "constant", "after the warm-up, which is linear here");
    } else if (type == "WarmupDecayLR") {
      Map(s, "train.schedule.name", "linear");
    } else if (type == "WarmupCosineLR") {
      Map(s, "train.schedule.name", "cosine");
    } else {
      draft_.Absent(s.path, s.value.dump(),
                    "schedules here are constant, linear and cosine, each with a warm-up");
    }
  }
  void CosMinRatio(const Setting& s) {
    const Json& lr = config_.value(Json::json_pointer("/optimizer/params/lr"), Json());
    if (!lr.is_number()) {
      draft_.Absent(s.path, s.value.dump(),
                    "set train.schedule.min_lr: the ratio times the learning rate");
      return;
    }
    Map(s, "train.schedule.min_lr", absl::StrCat(lr.get<double>() * s.value.get<double>()));
  }

  void Bucket(const Setting& s) {
    // DeepSpeed counts elements.
    Map(s, "layout.bucket_size", absl::StrCat(Whole(s.value) * 4), "in bytes of fp32 gradients");
  }
  void ShardSize(const Setting& s) {
    if (Whole(s.value) > 1) {
      MapWhole(s, "layout.shard_size");
    } else {
      draft_.Automatic(s.path, s.value.dump(), "all ranks share the states");
    }
  }

  void OldOffload(const Setting& s) {
    if (s.value.get<bool>()) Map(s, "layout.offload.optimizer", "host");
  }
  void OffloadOptimizer(const Setting& s) { Map(s, "layout.offload.optimizer", TierOf(s.value)); }
  void OffloadParameter(const Setting& s) {
    const std::string tier = TierOf(s.value);
    Map(s, "layout.offload.parameter", tier);
    const std::string optimizer = draft_.Get("layout.offload.optimizer");
    const bool nearer =
        optimizer.empty() || optimizer == "device" || (optimizer == "host" && tier == "nvme");
    if (tier != "device" && nearer) {
      draft_.Set("layout.offload.optimizer", tier);
      draft_.Remark(absl::StrCat("layout.offload.optimizer is ", tier,
                                 ": weights never rest farther away than the moments"));
    }
  }
  // Applies to what `device` says, which comes before it in the alphabet.
  void OffloadRatio(const Setting& s) {
    const double ratio = s.value.get<double>();
    const std::string tier = draft_.Get("layout.offload.optimizer");
    if (tier.empty() || tier == "device" || ratio >= 1) {
      draft_.Automatic(s.path, s.value.dump(),
                       "all of the optimizer's states go where device says");
      return;
    }
    Map(s, "layout.offload.optimizer",
        absl::StrCat("{device: ", 1 - ratio, ", ", tier, ": ", ratio, "}"));
  }
  void NvmePath(const Setting& s) { MapAsIs(s, "resources.nvme.paths"); }
  void BlockSize(const Setting& s) { MapWhole(s, "resources.nvme.block_bytes"); }
  void QueueDepth(const Setting& s) { MapWhole(s, "resources.nvme.queue_depth"); }

  void CpuCheckpointing(const Setting& s) {
    if (s.value.get<bool>()) {
      Map(s, "layout.offload.activation", "host");
    } else {
      draft_.Automatic(s.path, "false",
                       "activations stay on the device unless layout.offload says otherwise");
    }
  }
  void Checkpoints(const Setting& s) {
    if (s.value.is_number()) Map(s, "layout.recompute", "block", "each layer keeps its input only");
  }

  // DeepSpeed's rule: global = micro x accumulation x data-parallel ranks; two of three are enough.
  absl::Status SetBatch() {
    const auto whole = [this](const char* key) {
      const Json value = config_.value(key, Json());
      return value.is_number() ? Whole(value) : int64_t{0};
    };
    const int64_t global = whole("train_batch_size"),
                  micro = whole("train_micro_batch_size_per_gpu"),
                  accumulation = whole("gradient_accumulation_steps");
    const int64_t ranks =
        int64_t{std::max(1u, context_.nodes)} * std::max(1u, context_.devices_per_node);
    const bool known = context_.devices_per_node > 0;
    if (global > 0 && micro > 0 && accumulation > 0 && known &&
        global != micro * accumulation * ranks) {
      return absl::InvalidArgumentError(absl::StrCat(
          "train_batch_size: got ", global, ", must be train_micro_batch_size_per_gpu ", micro,
          " x gradient_accumulation_steps ", accumulation, " x ", ranks,
          " data-parallel ranks = ", micro * accumulation * ranks, "; try another of the four"));
    }
    if (global > 0) return absl::OkStatus();
    const int64_t batch = std::max<int64_t>(1, micro) * std::max<int64_t>(1, accumulation) * ranks;
    draft_.Set("train.global_batch", absl::StrCat(batch));
    draft_.Remark(
        absl::StrCat("train.global_batch is ", batch, ": micro batch x accumulation x ", ranks,
                     ranks == 1 ? " rank" : " ranks",
                     known ? "" : "; import with --nodes and --devices-per-node for more"));
    return absl::OkStatus();
  }

  const Json& config_;
  const ImportContext& context_;
  SpecDraft draft_;
};

}  // namespace

absl::StatusOr<SpecDraft> ImportDeepSpeed(std::string_view json, const ImportContext& context) {
  const Json config =
      Json::parse(json, nullptr, /*allow_exceptions=*/false, /*ignore_comments=*/true);
  if (!config.is_object()) {
    return absl::InvalidArgumentError(
        "the DeepSpeed configuration is no JSON object; a ds_config.json begins with '{' (JSON has "
        "no "
        "trailing commas)");
  }
  return Importer(config, context).Run();
}

}  // namespace terrace
