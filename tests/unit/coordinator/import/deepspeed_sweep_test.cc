// Every key that DeepSpeed reads (tests/data/deepspeed_keys.json, written by
// record_deepspeed_keys.py) is known to the importer: mapped, automatic here, or said not to exist
// here. None is told to be no key of DeepSpeed, and none is passed over in silence.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "coordinator/import/deepspeed.h"

namespace terrace {
namespace {

using Json = nlohmann::json;

Json Keys() {
  std::ifstream file(TERRACE_TEST_DATA "/deepspeed_keys.json");
  return Json::parse(file).at("keys");
}

std::string PointerOf(std::string path) {
  std::replace(path.begin(), path.end(), '.', '/');
  return "/" + path;
}

TEST(DeepSpeedSweepTest, EveryKeyThatDeepSpeedReadsIsKnown) {
  int refused = 0, told = 0;
  const Json keys = Keys();
  for (const auto& [key, value] : keys.items()) {
    Json config;
    config[Json::json_pointer(PointerOf(key))] = value;
    const auto draft = ImportDeepSpeed(config.dump(), {.model = "gpt2", .train = "corpus.txt"});
    if (!draft.ok()) {  // its value is no word of the key
      EXPECT_THAT(std::string(draft.status().message()), testing::StartsWith(key + ": got"));
      ++refused;
      continue;
    }
    const auto& settings = draft->settings();
    const auto found = std::find_if(settings.begin(), settings.end(),
                                    [&](const ImportedSetting& one) { return one.setting == key; });
    ASSERT_NE(found, settings.end()) << key;
    EXPECT_NE(found->fate, Fate::kUnknown) << key << ": " << found->note;
    ++told;
  }
  EXPECT_GT(told, 170);
  EXPECT_LT(refused, 8);
}

}  // namespace
}  // namespace terrace
