// Values that a job of an array has in place of those in its spec's text.
//
// Pure. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/v1/job.pb.h"

namespace YAML {
class Node;
}

namespace terrace {

// INVALID_ARGUMENT, with key and value: the key is no path, stands below a key that has a value, or
// the value is not YAML.
absl::Status ApplyOverrides(const v1::ArrayMember& member, YAML::Node* root);

// The folder of a job's checkpoints below checkpoint.directory, by its values, so that no other job
// of a sweep finds them: "train.optimizer.lr=1e-4,train.seed=2". Other characters than letters,
// digits and these are %-encoded. INVALID_ARGUMENT: it would be too long for a name.
absl::StatusOr<std::string> FolderOf(const v1::ArrayMember& member);

}  // namespace terrace
