// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/export/adapter_checkpoint.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/text/json_text.h"
#include "proto/report/manifest_text.h"
#include "worker/checkpoint/convert.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/peft/names.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

std::string Text(const std::string& name, const std::vector<int64_t>& shape) {
  return absl::StrCat(name, " [", absl::StrJoin(shape, ", "), "]");
}

absl::Status CheckShapes(const AdapterCheckpoint& checkpoint, const Adapted& adapted) {
  const std::vector<int64_t>& shape = adapted.weight.shape();
  const bool matrices =
      shape.size() == 2 && adapted.a.shape.size() == 2 && adapted.b.shape.size() == 2;
  if (matrices) {
    const int64_t rank = checkpoint.lora().rank();
    const int64_t in = shape[checkpoint.transposed ? 0 : 1];
    const int64_t out = shape[checkpoint.transposed ? 1 : 0];
    if (adapted.a.shape == std::vector<int64_t>{rank, in} &&
        adapted.b.shape == std::vector<int64_t>{out, rank})
      return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat(Text(adapted.weight.name(), shape), ", ", Text(adapted.a.name, adapted.a.shape),
                   " and ", Text(adapted.b.name, adapted.b.shape),
                   " are no matrix and its adapter of rank ", checkpoint.lora().rank()));
}

bool IsOfTransposedFamily(const std::string& config_json) {
  if (!CheckJson(config_json).ok()) return false;
  const Json config = Json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  return config.is_object() && config.value("model_type", Json()) == "gpt2";
}

absl::StatusOr<std::vector<float>> ReadFloats(const StoredTensor& tensor) {
  ASSIGN_OR_RETURN(const std::vector<std::byte> stored, tensor.ReadAll());
  std::vector<float> floats(tensor.elements());
  ConvertElements(tensor.dtype, stored.data(), kernels::DType::kF32,
                  std::as_writable_bytes(std::span(floats)).data(), tensor.elements());
  return floats;
}

}  // namespace

bool HasAdapter(const SafetensorsReader& weights) {
  const std::vector<std::string> names = weights.Names();
  return std::any_of(names.begin(), names.end(), IsAdapterTensor);
}

absl::StatusOr<AdapterCheckpoint> ReadAdapterCheckpoint(std::string_view checkpoint,
                                                        const SafetensorsReader& weights) {
  const std::string path = PathIn(checkpoint, kManifestName);
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kManifestBytesMax));
  const std::optional<v1::JobSpec> spec = SpecOfManifest(text);
  if (!spec.has_value())
    return absl::DataLossError(absl::StrCat(path, ": the job spec in it cannot be read"));
  AdapterCheckpoint result;
  result.spec = *spec;
  if (!HasAdapter(weights) || spec->model().lora().rank() == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(Absl(checkpoint),
                     " holds no adapter: its job trained the model itself, which `terrace ckpt "
                     "export` writes without --adapter"));
  }
  result.transposed = IsOfTransposedFamily(spec->model().config_json());
  for (const std::string& name : weights.Names()) {
    if (!IsAdapterTensor(name)) continue;
    const std::string module = *ModuleOf(name);
    if (result.modules.contains(module)) continue;
    Adapted adapted;
    ASSIGN_OR_RETURN(const StoredTensor weight,
                     weights.Get(absl::StrCat(module, Absl(kWeightEnding))));
    ASSIGN_OR_RETURN(adapted.weight, StoredWeight::Of(weights, checkpoint, weight));
    ASSIGN_OR_RETURN(adapted.a, weights.Get(absl::StrCat(module, Absl(kLoraAEnding))));
    ASSIGN_OR_RETURN(adapted.b, weights.Get(absl::StrCat(module, Absl(kLoraBEnding))));
    RETURN_IF_ERROR(CheckShapes(result, adapted));
    result.modules.emplace(module, std::move(adapted));
  }
  return result;
}

std::vector<std::string> TrainedBeside(const AdapterCheckpoint& checkpoint,
                                       const SafetensorsReader& weights) {
  const auto& groups = checkpoint.spec.train().optimizer().groups();
  std::vector<std::string> trained;
  for (const std::string& name : weights.Names()) {
    if (IsAdapterTensor(name) || AreScalesOfCodes(weights, name)) continue;
    const auto last = std::find_if(groups.rbegin(), groups.rend(), [&](const auto& group) {
      return ::fnmatch(group.match().c_str(), name.c_str(), 0) == 0;
    });
    if (last != groups.rend() && !last->frozen()) trained.push_back(name);
  }
  return trained;
}

float ScaleOf(const v1::LoraSpec& lora) {
  const double rank = lora.rank();
  return static_cast<float>(lora.alpha() / (lora.rslora() ? std::sqrt(rank) : rank));
}

absl::StatusOr<LowRank> ReadLowRank(const AdapterCheckpoint& checkpoint, const Adapted& adapted) {
  LowRank product;
  product.rows = adapted.weight.shape()[0];
  product.columns = adapted.weight.shape()[1];
  product.rank = checkpoint.lora().rank();
  product.scale = ScaleOf(checkpoint.lora());
  ASSIGN_OR_RETURN(std::vector<float> a, ReadFloats(adapted.a));
  ASSIGN_OR_RETURN(std::vector<float> b, ReadFloats(adapted.b));
  // [out, in] = B A; [in, out] = A^T B^T.
  product.left = checkpoint.transposed ? Transposed(a, product.rank) : std::move(b);
  product.right = checkpoint.transposed ? Transposed(b, product.columns) : std::move(a);
  return product;
}

}  // namespace terrace
