// The sources of data.train: of a mixture, each a run of its files with a weight; otherwise one
// source of all files.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/v1/job.pb.h"

namespace terrace {

struct DataSourceFiles {
  int begin = 0, end = 0;  // of data.train
  double weight = 1;
  std::string name;  // for people: its path, of several the first and how many more
};

// In the order of the spec. INVALID_ARGUMENT where the files of data.mixture are not those of
// data.train, or a weight is none.
absl::StatusOr<std::vector<DataSourceFiles>> SourcesOf(const v1::DataSpec& spec);

}  // namespace terrace
