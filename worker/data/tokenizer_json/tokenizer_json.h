// Tokenizers as Hugging Face's tokenizer.json describes them: ids equal those of the `tokenizers`
// library without what its post-processor adds. What cannot be done exactly is refused by name when
// loading. `model_config`: see Tokenizer::Load.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/data/tokenizer.h"

namespace terrace {

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizerJson(const std::string& path,
                                                             std::string_view model_config);

}  // namespace terrace
