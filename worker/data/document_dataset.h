// A dataset whose samples are documents: each stands alone in its row, or, with data.samples
// packed, several stand in one (packing.h) and say where they start. The rest of the row is padding
// that the loss does not count, and neither are prompts (json_line.h). The rows of a step come from
// one bucket (bucket_draw.h), of a mixture each from one source (mixture/document_mixture.h).
//
// Where documents end: a line of .jsonl, the end of a .txt file, what a Megatron .idx says, or the
// tokenizer's end-of-text token in any other .bin (docs/formats.md).
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/v1/job.pb.h"
#include "worker/data/samples/window_dataset.h"
#include "worker/data/token_dataset.h"
#include "worker/data/token_segment.h"

namespace terrace {

struct DocumentSource {
  v1::DataSpec spec;
  TokenSequence train;
  std::vector<SourceTokens> sources;   // of its tokens, all of them
  TokenSequence validation;            // empty: the last documents of each source
  std::optional<int32_t> end_of_text;  // the tokenizer's
  int64_t seed = 0;
  int64_t global_batch = 1;
};

// INVALID_ARGUMENT when a file does not say where its documents end, or there are too few.
absl::StatusOr<std::unique_ptr<TokenDataset>> OpenDocuments(DocumentSource source);

}  // namespace terrace
