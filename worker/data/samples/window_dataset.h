// A dataset whose samples are windows of all tokens of a source in a row.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/v1/job.pb.h"
#include "worker/data/token_dataset.h"
#include "worker/data/token_segment.h"

namespace terrace {

// Of the tokens of data.train, those of one source.
struct SourceTokens {
  std::string name;
  double weight = 1;
  int64_t begin = 0, count = 0;
};

// `validation`: empty where the last tokens of each source are held out. INVALID_ARGUMENT where a
// source or the validation has no window.
absl::StatusOr<std::unique_ptr<TokenDataset>> OpenWindows(const v1::DataSpec& spec,
                                                          TokenSequence train,
                                                          std::vector<SourceTokens> sources,
                                                          TokenSequence validation, int64_t seed);

}  // namespace terrace
