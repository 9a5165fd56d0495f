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
#include "worker/checkpoint/training_state.h"
#include "worker/data/token_sum.h"

namespace terrace {

inline constexpr char kManifestName[] = "manifest.json";

struct Checksum {
  enum Kind {
    kXxh3,   // XXH3-64 with seed 0
    kSum64,  // of file_sum.h: several writers make it together
  };
  Kind kind = kXxh3;
  uint64_t value = 0;
  bool operator==(const Checksum&) const = default;
};
// "sum64 13b7841262fc2026"
std::string Describe(const Checksum& checksum);

struct ManifestFile {
  std::string name;
  int64_t bytes = 0;
  Checksum checksum;
};

struct Manifest {
  int64_t step = 0;
  int64_t tokens = 0;
  TrainingState training;  // the loss scale of an fp16 job alone
  int64_t seed = 0;
  int64_t unix_ms = 0;
  std::string job;
  std::string spec_json;  // v1::JobSpec as protobuf's JSON; an object
  TokenSums data;         // no tokens: it does not say, as those of earlier releases
  std::vector<ManifestFile> files;
};

// "<folder>/<name>"
std::string PathIn(std::string_view folder, std::string_view name);
// Reads every byte of the file, through a buffer of 1 MiB.
absl::StatusOr<ManifestFile> DescribeFile(std::string_view folder, const std::string& name,
                                          Checksum::Kind kind);

absl::StatusOr<Manifest> ReadManifest(std::string_view folder);
absl::Status WriteManifest(std::string_view folder, const Manifest& manifest);

}  // namespace terrace
