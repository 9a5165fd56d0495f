// SPDX-License-Identifier: Apache-2.0
#include "coordinator/layout/parameter_groups.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/nearest.h"
#include "base/strings.h"
#include "coordinator/layout/formats.h"
#include "coordinator/model/lora.h"

namespace terrace {
namespace {

constexpr int kNone = -1;

bool Matches(const v1::ParameterGroup& group, const Tensor& tensor) {
  return fnmatch(group.match().c_str(), tensor.name.c_str(), 0) == 0;
}

int GroupOf(const v1::OptimizerSpec& optimizer, const Tensor& tensor) {
  for (int i = optimizer.groups_size() - 1; i >= 0; --i) {
    if (Matches(optimizer.groups(i), tensor)) return i;
  }
  return kNone;
}

// How many layers a tensor is below the head.
int64_t Depth(const ModelConfig& config, const Tensor& tensor) {
  if (tensor.layer >= 0) return config.layers - tensor.layer;
  return IsOfEmbedding(tensor.role) ? config.layers + 1 : 0;
}

// Roles whose tensors lie one after the other as one product's matrix or bias.
const std::vector<std::vector<TensorRole>>& Products() {
  using enum TensorRole;
  static const auto* const products = new std::vector<std::vector<TensorRole>>{
      {kQ, kK, kV},       {kQBias, kKBias, kVBias},   {kQLoraA, kKLoraA, kVLoraA},
      {kMlpGate, kMlpUp}, {kMlpGateBias, kMlpUpBias}, {kMlpGateLoraA, kMlpUpLoraA}};
  return *products;
}

std::string ProblemOf(std::string_view got, std::string_view must, std::string_view way_out) {
  return absl::StrCat("train.optimizer.groups: got ", Absl(got), ", must ", Absl(must), "; ",
                      Absl(way_out));
}

// The rule that a group asks for; none: the optimizer's.
const kernels::OptimizerRow* RuleAskedFor(const v1::OptimizerSpec& optimizer, int group) {
  return group == kNone ? nullptr : kernels::FindOptimizer(optimizer.groups(group).rule());
}

kernels::OptimizerRule RuleOf(const v1::OptimizerSpec& optimizer, int group, const Tensor& tensor) {
  if (const auto* asked = RuleAskedFor(optimizer, group)) return asked->rule;
  const kernels::OptimizerRow* job = kernels::FindOptimizer(OptimizerName(optimizer));
  const bool elsewhere = job == nullptr || (job->whole_matrix && !IsLayerMatrix(tensor));
  return elsewhere ? kernels::OptimizerRule::kAdamw : job->rule;
}

// The first tensor that its group's rule cannot update, as a problem; "" where there is none.
std::string NoMatrix(const v1::OptimizerSpec& optimizer, const Model& model) {
  for (const Tensor& tensor : model.tensors) {
    const kernels::OptimizerRow* asked = RuleAskedFor(optimizer, GroupOf(optimizer, tensor));
    if (asked == nullptr || !asked->whole_matrix || IsLayerMatrix(tensor)) continue;
    return ProblemOf(absl::StrCat("rule ", Absl(asked->name), " for ", tensor.name),
                     absl::StrCat("ask for ", Absl(asked->name), " for matrices of layers alone"),
                     "rule: adamw");
  }
  return "";
}

// Names of the rules by which a line's tensors are updated, in the order in which they come; none
// where that is the optimizer's alone. Before the line counts the tensor.
void AddRule(const kernels::OptimizerRow& rule, const kernels::OptimizerRow& usual,
             v1::ParameterGroupLine* line) {
  const bool first = line->tensors() == 0;
  const std::string name(rule.name),
      before = line->rule().empty() ? std::string(usual.name) : line->rule();
  if (first && rule.rule != usual.rule) line->set_rule(name);
  if (first || absl::StrContains(before, name)) return;
  line->set_rule(absl::StrCat(before, ", ", name));
}

std::string MatchesNothing(const v1::ParameterGroup& group, const Model& model) {
  std::vector<std::string_view> names;
  for (const Tensor& tensor : model.tensors) names.push_back(tensor.name);
  const std::string nearest(Nearest(group.match(), names));
  return ProblemOf(
      absl::StrCat("'", group.match(), "'"), "match a tensor of the model",
      absl::StrCat("its names are like ", nearest.empty() ? model.tensors.front().name : nearest,
                   ", and * stands for any text"));
}

// The place among Products() of the one that the role is part of; kNone: of none.
int ProductOf(TensorRole role) {
  const std::vector<std::vector<TensorRole>>& products = Products();
  const auto found = std::find_if(products.begin(), products.end(), [&](const auto& roles) {
    return std::find(roles.begin(), roles.end(), role) != roles.end();
  });
  return found == products.end() ? kNone : static_cast<int>(found - products.begin());
}

// The first two tensors of a product that are updated differently, as a problem; "" where there
// are none. A model may have thousands of layers.
std::string Apart(const v1::OptimizerSpec& optimizer, const Model& model) {
  if (optimizer.groups().empty()) return "";
  std::map<std::pair<int64_t, int>, const Tensor*> first;
  for (const Tensor& tensor : model.tensors) {
    const int product = ProductOf(tensor.role);
    if (product == kNone) continue;
    const Tensor& one = *first.try_emplace({tensor.layer, product}, &tensor).first->second;
    if (UpdateOf(optimizer, model.config, one) == UpdateOf(optimizer, model.config, tensor))
      continue;
    return ProblemOf(absl::StrCat("different updates of ", one.name, " and ", tensor.name),
                     "treat them alike: one product computes with both",
                     "match both with one pattern");
  }
  return "";
}

}  // namespace

bool IsLayerMatrix(const Tensor& tensor) { return tensor.layer >= 0 && tensor.shape.size() == 2; }

TensorUpdate UpdateOf(const v1::OptimizerSpec& optimizer, const ModelConfig& config,
                      const Tensor& tensor) {
  const int index = GroupOf(optimizer, tensor);
  const bool frozen = index != kNone ? optimizer.groups(index).frozen()
                                     : config.lora.rank > 0 && !IsAdapter(tensor.role);
  if (frozen) return {.frozen = true};
  double lr_scale = 1;
  double weight_decay = tensor.shape.size() >= 2 ? optimizer.weight_decay() : 0;
  if (optimizer.layer_decay() > 0)
    lr_scale = std::pow(optimizer.layer_decay(), static_cast<double>(Depth(config, tensor)));
  if (index != kNone) {
    const v1::ParameterGroup& group = optimizer.groups(index);
    lr_scale *= group.lr_scale();
    if (group.has_weight_decay()) weight_decay = group.weight_decay();
  }
  return {
      .lr_scale = lr_scale, .weight_decay = weight_decay, .rule = RuleOf(optimizer, index, tensor)};
}

std::vector<std::string> ParameterGroupProblems(const v1::OptimizerSpec& optimizer,
                                                const Model& model) {
  std::vector<std::string> problems;
  for (const v1::ParameterGroup& group : optimizer.groups()) {
    const bool any = std::any_of(model.tensors.begin(), model.tensors.end(),
                                 [&](const Tensor& tensor) { return Matches(group, tensor); });
    if (!any) problems.push_back(MatchesNothing(group, model));
  }
  if (const std::string apart = Apart(optimizer, model); !apart.empty()) problems.push_back(apart);
  if (const std::string other = NoMatrix(optimizer, model); !other.empty())
    problems.push_back(other);
  const bool trains = std::any_of(
      model.tensors.begin(), model.tensors.end(),
      [&](const Tensor& tensor) { return !UpdateOf(optimizer, model.config, tensor).frozen; });
  if (!trains)
    problems.push_back(ProblemOf("every tensor frozen", "leave something to train",
                                 "of several patterns that match a tensor the last counts, so "
                                 "name what trains last: {frozen: false}"));
  return problems;
}

int64_t FrozenParameters(const v1::OptimizerSpec& optimizer, const Model& model) {
  if (optimizer.groups().empty() && model.config.lora.rank == 0) return 0;
  int64_t frozen = 0;
  for (const Tensor& tensor : model.tensors) {
    if (UpdateOf(optimizer, model.config, tensor).frozen) frozen += tensor.elements();
  }
  return frozen;
}

int64_t FirstTrainedLayer(const v1::OptimizerSpec& optimizer, const Model& model) {
  int64_t first = model.config.layers;
  if (optimizer.groups().empty() && model.config.lora.rank == 0) return kNone;
  for (const Tensor& tensor : model.tensors) {
    const int64_t layer = model.config.layers - Depth(model.config, tensor);  // -1: an embedding
    if (layer < first && !UpdateOf(optimizer, model.config, tensor).frozen) first = layer;
  }
  return first;
}

double TrainingFlopsPerToken(const v1::OptimizerSpec& optimizer, const Model& model,
                             int64_t sequence_length) {
  double flops = FlopsPerToken(model, sequence_length);
  if (FrozenParameters(optimizer, model) == 0) return flops;
  constexpr double kOfOneProduct = 2, kAttentionBackward = 2.0 / 3;
  const int64_t first = FirstTrainedLayer(optimizer, model);
  for (const Tensor& tensor : model.tensors) {
    const bool tied = tensor.role == TensorRole::kTokenEmbedding && model.config.tied_embeddings;
    const bool head = tied || tensor.role == TensorRole::kLmHead;
    if (!head && !IsMatrixProduct(tensor.role)) continue;
    const bool frozen = UpdateOf(optimizer, model.config, tensor).frozen;
    const int products = (frozen ? 1 : 0) + (!head && tensor.layer < first ? 1 : 0);
    flops -= products * kOfOneProduct * static_cast<double>(tensor.elements());
  }
  for (int64_t layer = 0; layer < first; ++layer)
    flops -= kAttentionBackward * AttentionFlopsPerToken(model.config, layer, sequence_length);
  return flops;
}

double StepFlopsPerToken(const v1::TrainSpec& train, const Model& model, int64_t sequence_length) {
  constexpr double kForward = 1.0 / 3;  // of a step that trains everything
  const double reference =
      train.has_preference() ? kForward * FlopsPerToken(model, sequence_length) : 0;
  return TrainingFlopsPerToken(train.optimizer(), model, sequence_length) + reference;
}

std::vector<v1::ParameterGroupLine> ParameterGroupLines(const v1::OptimizerSpec& optimizer,
                                                        const Model& model) {
  const kernels::OptimizerRow* job = kernels::FindOptimizer(OptimizerName(optimizer));
  const auto usual = job == nullptr ? kernels::OptimizerRule::kAdamw : job->rule;
  const bool alike = optimizer.groups().empty() && optimizer.layer_decay() == 0 &&
                     !kernels::RowOf(usual).whole_matrix;
  if (alike && model.config.lora.rank == 0) return {};
  // Behind the groups come three lines of tensors that are in none: adapters, all others, and of
  // these those that another rule updates.
  std::vector<v1::ParameterGroupLine> lines(optimizer.groups_size() + 3);
  for (int i = 0; i < optimizer.groups_size(); ++i) lines[i].set_match(optimizer.groups(i).match());
  lines[optimizer.groups_size()].set_match("model.lora");
  for (const Tensor& tensor : model.tensors) {
    const int group = GroupOf(optimizer, tensor);
    const TensorUpdate update = UpdateOf(optimizer, model.config, tensor);
    const bool other = update.rule != usual && !update.frozen;
    const int of_none = optimizer.groups_size() + (IsAdapter(tensor.role) ? 0 : other ? 2 : 1);
    v1::ParameterGroupLine& line = lines[group == kNone ? of_none : group];
    const double least = line.tensors() == 0 ? update.lr_scale : line.min_lr_scale();
    line.set_min_lr_scale(std::min(least, update.lr_scale));
    line.set_max_lr_scale(std::max(line.max_lr_scale(), update.lr_scale));
    line.set_weight_decay(std::max(line.weight_decay(), update.weight_decay));
    line.set_frozen(update.frozen);
    if (!update.frozen) AddRule(kernels::RowOf(update.rule), kernels::RowOf(usual), &line);
    line.set_tensors(line.tensors() + 1);
    line.set_parameters(line.parameters() + tensor.elements());
  }
  const auto is_empty = [](const v1::ParameterGroupLine& line) { return line.tensors() == 0; };
  lines.erase(std::remove_if(lines.begin() + optimizer.groups_size(), lines.end(), is_empty),
              lines.end());
  return lines;
}

}  // namespace terrace
