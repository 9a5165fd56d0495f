// SPDX-License-Identifier: Apache-2.0
#include "coordinator/model/lora.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/nearest.h"
#include "base/strings.h"

namespace terrace {
namespace {

struct AdapterRoles {
  TensorRole weight, a, b;
};

constexpr AdapterRoles kAdapters[] = {
    {TensorRole::kQkv, TensorRole::kQkvLoraA, TensorRole::kQkvLoraB},
    {TensorRole::kQ, TensorRole::kQLoraA, TensorRole::kQLoraB},
    {TensorRole::kK, TensorRole::kKLoraA, TensorRole::kKLoraB},
    {TensorRole::kV, TensorRole::kVLoraA, TensorRole::kVLoraB},
    {TensorRole::kAttentionOut, TensorRole::kAttentionOutLoraA, TensorRole::kAttentionOutLoraB},
    {TensorRole::kMlpUp, TensorRole::kMlpUpLoraA, TensorRole::kMlpUpLoraB},
    {TensorRole::kMlpGate, TensorRole::kMlpGateLoraA, TensorRole::kMlpGateLoraB},
    {TensorRole::kMlpDown, TensorRole::kMlpDownLoraA, TensorRole::kMlpDownLoraB},
};

// Null for what is neither a linear layer's weight nor its adapter.
const AdapterRoles* RolesOf(TensorRole role) {
  const auto* found =
      std::find_if(std::begin(kAdapters), std::end(kAdapters), [&](const AdapterRoles& roles) {
        return roles.weight == role || roles.a == role || roles.b == role;
      });
  return found == std::end(kAdapters) ? nullptr : found;
}

bool Names(std::string_view target, std::string_view module) {
  if (target == kAllLinear || target == module) return true;
  return module.ends_with(target) && module[module.size() - target.size() - 1] == '.';
}

constexpr std::string_view kWeight = ".weight";

std::string Problem(std::string_view key, std::string_view got, std::string_view must,
                    std::string_view way_out) {
  return absl::StrCat("model.lora.", Absl(key), ": got ", Absl(got), ", must ", Absl(must), "; ",
                      Absl(way_out));
}

std::vector<const Tensor*> LinearLayers(const Model& model) {
  std::vector<const Tensor*> layers;
  for (const Tensor& tensor : model.tensors) {
    if (IsMatrixProduct(tensor.role)) layers.push_back(&tensor);
  }
  return layers;
}

std::string_view ModuleOf(const Tensor& weight) {
  return std::string_view(weight.name).substr(0, weight.name.size() - kWeight.size());
}

std::string NoSuchLayer(const std::string& target, const std::vector<const Tensor*>& layers) {
  std::vector<std::string_view> names;
  for (const Tensor* layer : layers) {
    const std::string_view module = ModuleOf(*layer);
    names.push_back(module.substr(module.rfind('.') + 1));
  }
  const std::string nearest(Nearest(target, names));
  return Problem("targets", absl::StrCat("'", target, "'"),
                 "name a linear layer of the transformer's layers",
                 absl::StrCat("try ", nearest.empty() ? std::string(kAllLinear) : nearest));
}

}  // namespace

bool HasAdapter(const LoraConfig& lora, std::string_view module) {
  return lora.rank > 0 &&
         std::any_of(lora.targets.begin(), lora.targets.end(),
                     [&](const std::string& target) { return Names(target, module); });
}

bool IsLoraA(TensorRole role) {
  const AdapterRoles* roles = RolesOf(role);
  return roles != nullptr && roles->a == role;
}

bool IsLoraB(TensorRole role) {
  const AdapterRoles* roles = RolesOf(role);
  return roles != nullptr && roles->b == role;
}

TensorRole AdaptedRole(TensorRole role) {
  const AdapterRoles* roles = RolesOf(role);
  return roles == nullptr ? role : roles->weight;
}

TensorRole LoraA(TensorRole weight) { return RolesOf(weight)->a; }
TensorRole LoraB(TensorRole weight) { return RolesOf(weight)->b; }

int64_t AdapterParameters(const Model& model) {
  int64_t parameters = 0;
  for (const Tensor& tensor : model.tensors) {
    if (IsAdapter(tensor.role)) parameters += tensor.elements();
  }
  return parameters;
}

std::vector<std::string> LoraProblems(const ModelConfig& config) {
  const LoraConfig& lora = config.lora;
  if (lora.rank == 0) return {};
  ModelConfig plain = config;
  plain.lora = {};
  const Model model = BuildModel(plain);
  const std::vector<const Tensor*> layers = LinearLayers(model);
  std::vector<std::string> problems;
  for (const std::string& target : lora.targets) {
    const bool any = std::any_of(layers.begin(), layers.end(), [&](const Tensor* layer) {
      return Names(target, ModuleOf(*layer));
    });
    if (!any) problems.push_back(NoSuchLayer(target, layers));
  }
  for (const Tensor* layer : layers) {
    const int64_t side = *std::min_element(layer->shape.begin(), layer->shape.end());
    if (!HasAdapter(lora, ModuleOf(*layer)) || lora.rank <= side) continue;
    problems.push_back(
        Problem("rank", absl::StrCat(lora.rank),
                absl::StrCat("be at most ", side, ", the shorter side of ", layer->name),
                "try a smaller rank, or other model.lora.targets"));
    break;
  }
  return problems;
}

}  // namespace terrace
