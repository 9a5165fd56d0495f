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
#include "worker/data/special_tokens.h"

namespace terrace {

// `config_json` with "architectures" (from model_type, when it is missing), "torch_dtype" (always:
// what the weights beside it are stored in) and the ids of `special`. Without an end token
// "eos_token_id" is null unless it is given: a class's default would end texts at a stray token.
absl::StatusOr<std::string> CompleteModelConfig(std::string_view config_json, kernels::DType dtype,
                                                const SpecialTokens& special);

inline constexpr char kChatTemplateFile[] = "chat_template.jinja";

// Where the files of a model and its tokenizer lie.
struct ModelSources {
  std::string tokenizer;           // as in data.tokenizer; "bytes" has no files
  std::string weights;             // as in model.init
  std::string chat_template = {};  // as in data.chat_template
};

// Copies what belongs to the tokenizer into `folder` (its own file, tokenizer_config.json,
// special_tokens_map.json, a chat template) and generation_config.json. A `chat_template` becomes
// chat_template.jinja, which transformers prefers to all others. A tokenizer or a template that
// cannot be read any more is logged, not an error: the weights matter more.
absl::Status CopyModelFiles(const ModelSources& sources, std::string_view folder);

// Makes the files of `folder` name the tokens of `special`, so that `transformers` ends a text
// where Terrace does: tokenizer_config.json, special_tokens_map.json and generation_config.json,
// which are made where they are missing.
absl::Status NameSpecialTokens(const SpecialTokens& special, std::string_view folder);

// The files of `folder` that belong to `transformers`, without weights, in the order of their
// names.
absl::StatusOr<std::vector<std::string>> ListModelFiles(std::string_view folder);

}  // namespace terrace
