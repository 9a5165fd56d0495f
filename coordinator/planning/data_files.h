// What the coordinator can know of a job's data before it plans: from names, sizes and the first
// bytes of files, of which at most 32 KiB are read. What it does not see is the ranks' to tell,
// which read everything.
//
// Errors are INVALID_ARGUMENT that begin with the key, as the ranks would say it.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "proto/v1/job.pb.h"

namespace terrace {

// Files of no kind that data is read from; files of tokens whose headers, sizes or first ids
// contradict themselves or the model's vocabulary. OK for what cannot be seen here, and for all
// but names where model.config_json is no model, which planning tells.
absl::Status CheckDataFiles(const v1::JobSpec& spec);

// Also fewer tokens than a sequence has, where they can be counted. For jobs that are to train: a
// plan on paper may name a sample.
absl::Status CheckDataLengths(const v1::JobSpec& spec);

}  // namespace terrace
