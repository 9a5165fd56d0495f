// `terrace import`: reads another tool's configuration, writes a job spec to standard output and
// what became of each setting to standard error; with JSON all of it to standard output.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "coordinator/import/deepspeed.h"

namespace terrace {

struct ImportOptions {
  std::string from;   // "deepspeed", "megatron"
  std::string input;  // a file; of megatron also the flags themselves
  ImportContext context;
  bool json = false;
};

// INVALID_ARGUMENT also when the spec that was made is not valid, after writing it.
absl::Status ImportConfiguration(const ImportOptions& options);

}  // namespace terrace
