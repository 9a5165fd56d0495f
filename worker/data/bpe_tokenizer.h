// Byte-level BPE as Hugging Face's tokenizer.json describes it (GPT-2, Llama 3, Qwen 2 and 3): ids
// equal those of the `tokenizers` library without special tokens. What cannot be done exactly is
// refused by name when loading.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/data/tokenizer.h"

namespace terrace {

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadBpeTokenizer(const std::string& path);

}  // namespace terrace
