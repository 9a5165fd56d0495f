// SPDX-License-Identifier: Apache-2.0
#include "coordinator/model/presets.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "coordinator/model/model.h"

namespace terrace {
namespace {

TEST(PresetsTest, ParameterCountsEqualThePublishedOnes) {
  for (const Preset& preset : Presets()) {
    const auto config = ParseModelConfig(preset.config_json, 128);
    ASSERT_TRUE(config.ok()) << preset.name << ": " << config.status();
    EXPECT_EQ(BuildModel(*config).Parameters(), preset.parameters) << preset.name;
  }
}

TEST(PresetsTest, AreSortedByNameAndFound) {
  const auto& presets = Presets();
  EXPECT_TRUE(std::is_sorted(presets.begin(), presets.end(),
                             [](const Preset& a, const Preset& b) { return a.name < b.name; }));
  for (const Preset& preset : presets) EXPECT_EQ(FindPreset(preset.name), &preset);
  EXPECT_EQ(FindPreset("gpt5"), nullptr);
}

}  // namespace
}  // namespace terrace
