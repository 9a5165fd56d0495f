// SPDX-License-Identifier: Apache-2.0
#include "coordinator/spec/keys.h"

#include "coordinator/spec/key_sections.h"

namespace terrace {

bool MeansChosen(const SpecKey& key) { return key.fallback == "-1" && key.low > -1; }

const std::vector<SpecKey>& SpecKeys() {
  static const std::vector<SpecKey> table = [] {
    std::vector<SpecKey> keys;
    for (const auto& section : {DataKeys(), TrainingKeys(), OptimizerKeys(), FormatKeys(),
                                LayoutKeys(), ResourceKeys(), JobKeys()}) {
      keys.insert(keys.end(), section.begin(), section.end());
    }
    return keys;
  }();
  return table;
}

const std::vector<ShortForm>& ShortForms() {
  static const std::vector<ShortForm> forms = {
      {"layout.offload",
       {"layout.offload.parameter", "layout.offload.gradient", "layout.offload.optimizer"}},
      {"train.preference", {"train.preference.loss"}},
      {"resources.nvme", {"resources.nvme.paths"}},
  };
  return forms;
}

}  // namespace terrace
