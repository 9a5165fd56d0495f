// What `terrace explain` prints: of a pipelined job the order of passes, clock x stage, then the
// listing of each stage's program.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/v1/plan.pb.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// The programs to list: all of them, or that of one stage. INVALID_ARGUMENT when there is none of
// that stage.
absl::StatusOr<std::vector<v1::Program>> SelectStage(std::vector<v1::Program> programs,
                                                     std::optional<uint32_t> stage);

// `sequence`: only this one; empty: all.
std::string ExplainText(const v1::Layout& layout, const std::vector<v1::Program>& programs,
                        const std::string& sequence);

}  // namespace terrace
