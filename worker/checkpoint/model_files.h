// The files that make a folder of weights load in `transformers`: config.json and the tokenizer's.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/tensor_view.h"

namespace terrace {

// `config_json` with "architectures" (from model_type, when it is missing) and "torch_dtype"
// (always: what the weights beside it are stored in).
absl::StatusOr<std::string> CompleteModelConfig(std::string_view config_json, kernels::DType dtype);

// Copies the files of `tokenizer` (as in data.tokenizer; "bytes" has none) into `folder`. A
// tokenizer that cannot be read any more is logged, not an error: the weights matter more. Returns
// the names written.
absl::StatusOr<std::vector<std::string>> CopyTokenizerFiles(std::string_view tokenizer,
                                                            std::string_view folder);

}  // namespace terrace
