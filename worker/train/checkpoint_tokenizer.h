// The tokenizer that belongs to a job or to a checkpoint of it.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/v1/job.pb.h"
#include "worker/data/chat/chat_template.h"
#include "worker/data/special_tokens.h"
#include "worker/data/token_dataset.h"
#include "worker/data/tokenizer.h"

namespace terrace {

// Of the job that wrote the checkpoint, as its manifest has it; of weights that no job wrote what
// stands for it (proto/report/manifest_text.h).
absl::StatusOr<v1::JobSpec> SpecOfCheckpoint(const std::string& checkpoint);

// The copy in the checkpoint's folder, so that it may be moved to another machine; else the file
// that the job names. NOT_FOUND when there is neither.
absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerOfCheckpoint(const std::string& checkpoint);

// The one that an option --tokenizer names, "bytes" or a file; where it names none ("") the
// checkpoint's.
absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFor(const std::string& checkpoint,
                                                        const std::string& named);

// The template of conversations that belongs to the checkpoint: `file`, a .jinja file, where one is
// named; the copy of data.chat_template in its folder; that of `tokenizer`, or where that is "" of
// the checkpoint's own.
absl::StatusOr<ChatTemplate> TemplateOfCheckpoint(const std::string& checkpoint,
                                                  const v1::DataSpec& data, std::string tokenizer,
                                                  std::string file);

// What checkpoints of the job name as their special tokens. Token files do not ask for a tokenizer:
// one that is named all the same is read here, and a failure is only logged.
SpecialTokens SpecialTokensOfJob(const v1::JobSpec& spec, const TokenDataset& dataset);

}  // namespace terrace
