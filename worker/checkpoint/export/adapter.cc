// SPDX-License-Identifier: Apache-2.0
// ExportAdapter: the adapter of a checkpoint as a folder for PEFT.
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "worker/checkpoint/export/adapter_checkpoint.h"
#include "worker/checkpoint/export/export.h"
#include "worker/checkpoint/export/exported_folder.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/peft/names.h"

namespace terrace {
namespace {

using Json = nlohmann::json;
using kernels::DType;

absl::Status WriteAdapter(const AdapterCheckpoint& checkpoint, DType dtype,
                          const std::string& path) {
  std::vector<const StoredTensor*> tensors;
  std::vector<TensorToWrite> to_write;
  for (const auto& [module, adapted] : checkpoint.modules) {
    for (const StoredTensor* tensor : {&adapted.a, &adapted.b}) {
      RETURN_IF_ERROR(CheckIsConvertible(*tensor, dtype));
      to_write.push_back({absl::StrCat(kPeftPrefix, tensor->name), dtype, tensor->shape});
      tensors.push_back(tensor);
    }
  }
  ASSIGN_OR_RETURN(SafetensorsWriter writer,
                   SafetensorsWriter::Create(path, to_write, {{"format", "pt"}}));
  for (const StoredTensor* tensor : tensors) {
    RETURN_IF_ERROR(AppendConverted(StoredWeight::OfNumbers(*tensor), dtype, &writer));
  }
  return writer.Finish();
}

bool Matches(std::string_view module, std::string_view target) {
  return module == target ||
         (module.ends_with(target) && module[module.size() - target.size() - 1] == '.');
}

// The last `parts` parts of a dotted name; all of it when it has fewer.
std::string LastParts(std::string_view name, int parts) {
  size_t begin = name.size();
  for (int i = 0; i < parts && begin != std::string_view::npos; ++i)
    begin = begin == 0 ? std::string_view::npos : name.rfind('.', begin - 1);
  return std::string(begin == std::string_view::npos ? name : name.substr(begin + 1));
}

// As PEFT matches a name: its last parts. The shortest that mean no module besides.
std::string TargetOf(const std::string& module, const AdapterCheckpoint& checkpoint,
                     const std::vector<std::string>& modules) {
  for (int parts = 1;; ++parts) {
    const std::string target = LastParts(module, parts);
    const bool exact = std::all_of(modules.begin(), modules.end(), [&](const std::string& other) {
      return !Matches(other, target) || checkpoint.modules.contains(other);
    });
    if (exact || target == module) return target;
  }
}

// What AutoPeftModel loads as the base: a folder for transformers.
Json BaseFolder(const std::string& init) {
  if (!init.starts_with('/')) return nullptr;
  const std::string_view file = std::string_view(init).substr(init.rfind('/') + 1);
  const bool is_file = file.ends_with(".safetensors") || file.ends_with(".json");
  return is_file ? init.substr(0, init.rfind('/')) : init;
}

// As Python would write it: PEFT's own files have whole numbers.
Json NumberOf(double value) {
  return value == std::floor(value) && std::abs(value) < 1e15 ? Json(static_cast<int64_t>(value))
                                                              : Json(value);
}

// adapter_config.json. `all`: the names of the model's tensors, which tell how short those of the
// modules may be.
std::string AdapterConfigText(const AdapterCheckpoint& checkpoint,
                              const std::vector<std::string>& all) {
  std::vector<std::string> modules;
  for (const std::string& name : all) {
    if (!IsAdapterTensor(name) && name.ends_with(kWeightEnding)) modules.push_back(*ModuleOf(name));
  }
  std::set<std::string> targets;
  for (const auto& [module, adapted] : checkpoint.modules)
    targets.insert(TargetOf(module, checkpoint, modules));
  const v1::LoraSpec& lora = checkpoint.lora();
  const Json config = {
      {"alpha_pattern", Json::object()},
      {"auto_mapping", nullptr},
      {"base_model_name_or_path", BaseFolder(checkpoint.spec.model().init())},
      {"bias", "none"},
      {"fan_in_fan_out", checkpoint.transposed},
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"layers_pattern", nullptr},
      {"layers_to_transform", nullptr},
      {"lora_alpha", NumberOf(lora.alpha())},
      {"lora_dropout", NumberOf(lora.dropout())},
      {"modules_to_save", nullptr},
      {"peft_type", "LORA"},
      {"r", lora.rank()},
      {"rank_pattern", Json::object()},
      {"revision", nullptr},
      {"target_modules", targets},
      {"task_type", "CAUSAL_LM"},
      {"use_dora", false},
      {"use_rslora", lora.rslora()},
  };
  return config.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// A folder of PEFT's would be without them.
absl::Status CheckAdapterIsAll(std::string_view path, const std::vector<std::string>& trained) {
  if (trained.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      Absl(path), ": its job trained ", trained.size(),
      trained.size() == 1 ? " tensor" : " tensors", " of the model beside the adapter (",
      trained.front(), trained.size() == 1 ? "" : ", ...",
      "), which a folder for PEFT would be without; write all of it with `terrace ckpt merge`"));
}

}  // namespace

absl::Status ExportAdapter(std::string_view checkpoint, std::string_view output,
                           std::string_view dtype_name) {
  ASSIGN_OR_RETURN(const DType dtype, ParseExportDtype(dtype_name));
  ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsReader> reader, OpenVerified(checkpoint));
  ASSIGN_OR_RETURN(const AdapterCheckpoint adapter, ReadAdapterCheckpoint(checkpoint, *reader));
  RETURN_IF_ERROR(CheckAdapterIsAll(checkpoint, TrainedBeside(adapter, *reader)));
  ASSIGN_OR_RETURN(PendingFolder folder, CreateExportFolder(output));
  RETURN_IF_ERROR(WriteAdapter(adapter, dtype, PathIn(folder.path(), kPeftWeights)));
  RETURN_IF_ERROR(WriteSyncedFile(PathIn(folder.path(), kPeftConfig),
                                  AdapterConfigText(adapter, reader->Names())));
  return folder.Commit();
}

}  // namespace terrace
