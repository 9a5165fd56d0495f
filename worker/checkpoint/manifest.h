// manifest.json of a checkpoint folder: what it is of, and every other file with its size and
// checksum. It is the last file written, so a folder with a valid manifest is whole
// (docs/formats.md).
//
// Pure apart from the files it names. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace {

inline constexpr char kManifestName[] = "manifest.json";

struct ManifestFile {
  std::string name;
  int64_t bytes = 0;
  uint64_t xxh3 = 0;
};

struct Manifest {
  int64_t step = 0;
  int64_t tokens = 0;
  int64_t seed = 0;
  int64_t unix_ms = 0;
  std::string job;
  std::string spec_json;  // v1::JobSpec as protobuf's JSON; an object
  std::vector<ManifestFile> files;
};

// "<folder>/<name>"
std::string PathIn(std::string_view folder, std::string_view name);
// Reads every byte of the file.
absl::StatusOr<ManifestFile> DescribeFile(std::string_view folder, const std::string& name);

absl::StatusOr<Manifest> ReadManifest(std::string_view folder);
absl::Status WriteManifest(std::string_view folder, const Manifest& manifest);

}  // namespace terrace
