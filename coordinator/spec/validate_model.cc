// SPDX-License-Identifier: Apache-2.0
#include "coordinator/spec/validate_model.h"

#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

constexpr double kAsSaved = -1;  // the adapter's folder says it

// All that the adapter's folder says is read later, where files are read.
void ValidateSavedAdapter(SpecReader& reader, v1::ModelSpec* model) {
  const std::string folder = model->lora().init();
  for (const char* key : {"rank", "alpha", "rslora", "targets"}) {
    const std::string path = absl::StrCat("model.lora.", key);
    if (!reader.Has(path)) continue;
    reader.Problem(path, "a value",
                   absl::StrCat("left out: model.lora.init is not default or gaussian but the "
                                "folder ",
                                folder, ", whose adapter_config.json says it"));
  }
  if (model->init() == "random") {
    reader.Problem("model.init", "random",
                   "the weights that the adapter in model.lora.init belongs to");
  }
  const double dropout = reader.Has("model.lora.dropout") ? model->lora().dropout() : kAsSaved;
  model->clear_lora();
  model->mutable_lora()->set_init(folder);
  model->mutable_lora()->set_dropout(dropout);
}

// Their order means nothing, and a job that goes on is compared with what it was.
void SortTargets(v1::LoraSpec* lora) {
  std::set<std::string> targets(lora->targets().begin(), lora->targets().end());
  lora->mutable_targets()->Assign(targets.begin(), targets.end());
}

// A group that changes a rate must not begin to train what adapters leave frozen.
void ValidateGroups(SpecReader& reader, const v1::OptimizerSpec& optimizer) {
  for (const v1::ParameterGroup& group : optimizer.groups()) {
    const std::string path = absl::StrCat("train.optimizer.groups.", group.match());
    const bool of_adapters = absl::StrContains(group.match(), "lora_");
    if (of_adapters || group.frozen() || reader.Has(absl::StrCat(path, ".frozen"))) continue;
    reader.Problem(path, "a group without frozen",
                   "one that says it beside adapters, where the model's own tensors are frozen",
                   "frozen: false to train what it matches, or a pattern of adapters such as "
                   "\"*lora_*\"");
  }
}

// A probability that the spec leaves out is taken from config.json.
void ClearUnsaid(v1::ModelSpec* model) {
  v1::DropoutSpec* dropout = model->mutable_dropout();
  if (dropout->embedding() < 0) dropout->clear_embedding();
  if (dropout->residual() < 0) dropout->clear_residual();
  if (dropout->attention() < 0) dropout->clear_attention();
  const bool said = dropout->has_embedding() || dropout->has_residual() || dropout->has_attention();
  if (!said) model->clear_dropout();
}

}  // namespace

void ValidateModel(SpecReader& reader, v1::JobSpec* spec) {
  constexpr double kAlphaOfRank = 2;
  ClearUnsaid(spec->mutable_model());
  v1::LoraSpec* lora = spec->mutable_model()->mutable_lora();
  if (lora->init().starts_with('/')) {
    ValidateSavedAdapter(reader, spec->mutable_model());
    return ValidateGroups(reader, spec->train().optimizer());
  }
  if (lora->rank() > 0) {
    if (lora->alpha() < 0) lora->set_alpha(kAlphaOfRank * lora->rank());
    SortTargets(lora);
    return ValidateGroups(reader, spec->train().optimizer());
  }
  spec->mutable_model()->clear_lora();
  for (const char* key : {"alpha", "rslora", "targets", "init", "dropout"}) {
    const std::string path = absl::StrCat("model.lora.", key);
    if (reader.Has(path))
      reader.Problem(path, "a value", "accompanied by model.lora.rank", "model.lora.rank 16");
  }
}

}  // namespace terrace
