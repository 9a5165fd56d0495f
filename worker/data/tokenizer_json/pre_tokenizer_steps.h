// The kinds of steps that a pre-tokenizer is made of.
//
// Thread-safe after construction.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/data/tokenizer_json/pre_tokenizer.h"
#include "worker/data/tokenizer_json/splitter.h"

namespace terrace::tokenizer_json {

// Cuts at the matches of a pattern (with `invert`, at what lies between them). `behavior` says what
// becomes of a match: Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous.
absl::StatusOr<std::unique_ptr<PreTokenizerStep>> MakeSplitStep(Splitter splitter,
                                                                std::string_view behavior,
                                                                bool invert);

// Puts a space in front of every piece that begins with none.
std::unique_ptr<PreTokenizerStep> MakePrefixSpaceStep();

// Writes spaces as `replacement` and puts one in front of a piece that begins with none: "always",
// "first" (only where the whole text begins) or "never".
std::unique_ptr<PreTokenizerStep> MakeMetaspaceStep(std::string replacement,
                                                    std::string_view scheme);

}  // namespace terrace::tokenizer_json
