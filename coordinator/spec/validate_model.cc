// SPDX-License-Identifier: Apache-2.0
#include "coordinator/spec/validate_model.h"

#include "absl/strings/str_cat.h"

namespace terrace {

void ValidateModel(SpecReader& reader, v1::JobSpec* spec) {
  constexpr double kAlphaOfRank = 2;
  v1::LoraSpec* lora = spec->mutable_model()->mutable_lora();
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
