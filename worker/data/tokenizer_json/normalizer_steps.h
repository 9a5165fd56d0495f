// The kinds of steps that a normalizer is made of.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "worker/data/tokenizer_json/normalizer.h"
#include "worker/data/tokenizer_json/splitter.h"
#include "worker/data/unicode/normal_form.h"

namespace terrace::tokenizer_json {

Normalizer::Step NormalFormStep(NormalForm form);
Normalizer::Step LowercaseStep();

// Puts map(code) in the place of every character, and nothing for kNoCode.
inline constexpr uint32_t kNoCode = 0xffffffff;
Normalizer::Step MapStep(uint32_t (*map)(uint32_t code));
uint32_t WithoutMarks(uint32_t code);     // StripAccents
uint32_t WithoutControls(uint32_t code);  // Nmt: controls go, other white space becomes a space

// Puts `prefix` in front of a text that is not empty.
Normalizer::Step PrependStep(std::string prefix);

// Puts `content` in the place of every match.
Normalizer::Step ReplaceStep(Splitter pattern, std::string content);

// Takes white space away at the ends.
Normalizer::Step StripStep(bool left, bool right);

}  // namespace terrace::tokenizer_json
