// The kinds of steps that a normalizer is made of.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "worker/data/tokenizer_json/normalizer.h"
#include "worker/data/tokenizer_json/splitter.h"

namespace terrace::tokenizer_json {

Normalizer::Step NfcStep();

// Puts `prefix` in front of a text that is not empty.
Normalizer::Step PrependStep(std::string prefix);

// Puts `content` in the place of every match.
Normalizer::Step ReplaceStep(Splitter pattern, std::string content);

// Takes white space away at the ends.
Normalizer::Step StripStep(bool left, bool right);

}  // namespace terrace::tokenizer_json
