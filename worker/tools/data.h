// terrace-rank data: what a job would be trained on, row by row, as its ranks see it: which tokens
// the loss counts, how much of the rows is padding, and the text of the first rows. Exit codes: 0
// done, 1 failure, 3 not found, 4 data that cannot be read, 5 full disk.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "worker/tools/output.h"

namespace terrace {

struct DataArgs {
  std::string request;  // file of a v1::DataRequest
  int64_t rows = 3;     // shown, from the first on
  int64_t steps = 100;  // looked at
};
int RunDataTool(const DataArgs& args, const ToolOutput& output);

}  // namespace terrace
