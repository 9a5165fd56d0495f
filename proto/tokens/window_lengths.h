// Whether data holds a window of data.sequence_length tokens and one to predict, in each split
// (data.samples: stream).
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "proto/v1/job.pb.h"

namespace terrace {

// How many of the `train` tokens of a source of data.train are held out for evaluation: the last
// ones, where data.validation names no files.
int64_t HeldOutTokens(const v1::DataSpec& spec, int64_t train);

// INVALID_ARGUMENT that names the split, its tokens and the least. `train` and `validation` are the
// tokens of the files of data.train and data.validation; of a mixture `train` is those of one
// source, and `source` its name.
absl::Status CheckWindowLengths(const v1::DataSpec& spec, int64_t train, int64_t validation,
                                std::string_view source = "");

}  // namespace terrace
