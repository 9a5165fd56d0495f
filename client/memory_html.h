// A page that shows the memory of a job over one step: for each stage and tier what is live, by
// class, at every instruction, and the largest buffers of the peak with what made them. One file
// without scripts or links, for a screen and for paper.
//
// Pure.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// `live` may be empty: then nothing runs. INVALID_ARGUMENT when a program contradicts itself.
absl::StatusOr<std::string> MemoryHtml(const v1::Job& job, std::span<const v1::Program> programs,
                                       const v1::GetMemoryResponse& live);

}  // namespace terrace
