// Values that a job of an array has in place of those in its spec's text.
//
// Pure. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "proto/v1/job.pb.h"

namespace YAML {
class Node;
}

namespace terrace {

// INVALID_ARGUMENT, with key and value: the key is no path, stands below a key that has a value, or
// the value is not YAML.
absl::Status ApplyOverrides(const v1::ArrayMember& member, YAML::Node* root);

}  // namespace terrace
