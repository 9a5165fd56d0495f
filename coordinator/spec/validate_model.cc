// SPDX-License-Identifier: Apache-2.0
#include "coordinator/spec/validate_model.h"

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

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
  model->clear_lora();
  model->mutable_lora()->set_init(folder);
}

}  // namespace

void ValidateModel(SpecReader& reader, v1::JobSpec* spec) {
  constexpr double kAlphaOfRank = 2;
  v1::LoraSpec* lora = spec->mutable_model()->mutable_lora();
  if (lora->init().starts_with('/')) return ValidateSavedAdapter(reader, spec->mutable_model());
  if (lora->rank() > 0) {
    if (lora->alpha() < 0) lora->set_alpha(kAlphaOfRank * lora->rank());
    return;
  }
  spec->mutable_model()->clear_lora();
  for (const char* key : {"alpha", "rslora", "targets", "init"}) {
    const std::string path = absl::StrCat("model.lora.", key);
    if (reader.Has(path))
      reader.Problem(path, "a value", "accompanied by model.lora.rank", "model.lora.rank 16");
  }
}

}  // namespace terrace
