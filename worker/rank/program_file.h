// What a rank is started with: its configuration and its program, read from files and not trusted.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "proto/v1/program.pb.h"
#include "proto/v1/worker.pb.h"

namespace terrace {

// Protobuf's JSON when the name ends in ".json", its binary form otherwise. NOT_FOUND,
// INVALID_ARGUMENT with the path.
absl::StatusOr<v1::RankConfig> ReadRankConfig(std::string_view path);

// Verifies the hash unless `sha256` is empty, then runs the checker. INVALID_ARGUMENT with the
// path.
absl::StatusOr<std::unique_ptr<v1::Program>> ReadProgram(std::string_view path,
                                                         std::string_view sha256);

}  // namespace terrace
