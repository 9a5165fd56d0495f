// The folders below which the paths of a job must lie, where an operator names any: data, caches,
// checkpoints and offload have roots of their own. Without any, paths may lead anywhere.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "proto/v1/job.pb.h"

namespace terrace {

struct JobRoots {
  std::vector<std::string> data, checkpoint, cache, offload;

  // One kind is enough: paths of the others may then lead nowhere.
  bool any() const {
    return !data.empty() || !checkpoint.empty() || !cache.empty() || !offload.empty();
  }
};

// An option of the programs that take roots.
struct RootOption {
  const char* flag;
  std::vector<std::string> JobRoots::*roots;
  const char* meaning;
};
std::span<const RootOption> RootOptions();

// As a command line has them: "--data-root", "/data", ...
std::vector<std::string> ArgumentsOf(const JobRoots& roots);

// INVALID_ARGUMENT for one that is not absolute or no folder.
absl::Status CheckRoots(const JobRoots& roots);

// One path of a spec, and which roots it may lie below.
struct SpecPath {
  std::string field;
  std::string path;
  std::vector<const RootOption*> below;
  bool is_written = false;
  bool is_made = false;  // where it is missing
};
std::vector<SpecPath> PathsOf(const v1::JobSpec& spec);

// Also of a path that is read where a spec is submitted (model.config).
absl::Status CheckReadPath(const std::string& field, const std::string& path,
                           const JobRoots& roots);

// INVALID_ARGUMENT names field, path, rule and way out. Always OK without roots.
absl::Status CheckPathsOf(const v1::JobSpec& spec, const JobRoots& roots);

}  // namespace terrace
