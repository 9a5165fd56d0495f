// `terrace import`: reads another tool's configuration, writes a job spec to standard output and
// what became of each setting to standard error; with JSON all of it to standard output.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "coordinator/import/deepspeed.h"

namespace terrace {

struct ImportOptions {
  std::string from;   // "deepspeed", "megatron"
  std::string input;  // a file; of megatron also the flags themselves
  ImportContext context;
  bool json = false;
};

// Whether the spec that was made and written is valid; an error when none could be made.
absl::StatusOr<bool> ImportConfiguration(const ImportOptions& options);

}  // namespace terrace
