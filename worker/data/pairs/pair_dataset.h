// A dataset of pairs of answers (train.preference): rows 2 p and 2 p + 1 of a batch are the chosen
// and the rejected answer of one pair, each behind the same prompt and in a row of its own. The
// loss counts the answers alone.
//
// What is longer than a row is cut at its end, as TRL's keep_start does. A pair of which an answer
// has no token left is left out. Both are counted, for a warning.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/data/document_dataset.h"
#include "worker/data/token_dataset.h"

namespace terrace {

// Each two documents of `source` are a pair. INVALID_ARGUMENT when there are too few.
absl::StatusOr<std::unique_ptr<TokenDataset>> OpenPairs(DocumentSource source);

}  // namespace terrace
