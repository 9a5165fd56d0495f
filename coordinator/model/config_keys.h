// What becomes of the keys of a config.json that describe nothing the compiler reads: known to be
// without effect on training (each with the reason), refused because they make another model, or
// said, so that nothing that decides the model or its numbers is ignored in silence.
//
// Keys as in the configuration classes of Hugging Face transformers 4 and 5. Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "coordinator/model/json_reader.h"

namespace terrace {

enum class KeyFate {
  kNoEffect,  // on training
  kRemark,    // what it asks for is not done, or is not read by transformers either
  kRefuse,    // it makes a model that is not supported
};

struct ConfigKey {
  std::string_view key;
  std::string_view families;  // with spaces between; empty: all
  KeyFate fate;
  std::string_view note;       // the reason, or the sentence after "got 0.1, "
  bool even_if_empty = false;  // said for false, 0, "", [] and {} too; never for null
};

const std::vector<ConfigKey>& ConfigKeys();

// Says what transformers does with the embedding of the token that pads, and what is done here.
std::string_view PaddingNote();

// For each key that `read` was not asked for: a remark, or a problem, or neither.
void JudgeConfigKeys(JsonReader& read, std::string_view family, std::vector<std::string>* remarks);

// The same for the object of rope's numbers: keys that its type does not read, and unknown ones.
void JudgeRopeKeys(const JsonReader& scaling, std::string_view type,
                   std::vector<std::string>* remarks);

}  // namespace terrace
