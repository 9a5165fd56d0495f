// The files that a spec names and that are read before planning, so that everything after is pure.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/job_roots.h"
#include "proto/v1/job.pb.h"

namespace terrace {

inline constexpr int64_t kSpecBytesMax = 1 << 20;
inline constexpr int64_t kModelConfigBytesMax = 4 << 20;

// Fills model.config_json, unless it is filled already, with the preset or the text of the file
// that model.config names (a folder means the config.json in it). INVALID_ARGUMENT that starts with
// "model.config:" when it is neither.
absl::Status ReadModelConfig(std::string_view base_directory, v1::JobSpec* spec,
                             const JobRoots& roots = {});

// Where model.lora.init is a folder of PEFT's: fills model.lora with what its adapter_config.json
// says. INVALID_ARGUMENT with one line for each thing in it that is not trained here.
absl::Status ReadAdapter(v1::JobSpec* spec, const JobRoots& roots = {});

// Paths of data and weights that lead to something that can be neither file nor folder, and data
// that cannot be trained on (data_files.h), where the coordinator sees what the workers will:
// INVALID_ARGUMENT that names key and path. What it does not see is the workers' to tell.
absl::Status CheckInputs(const v1::JobSpec& spec);

// ParseJobSpec, then ReadModelConfig, ReadAdapter and CheckInputs. With roots all paths must lie
// below them.
absl::StatusOr<v1::JobSpec> ReadJobSpec(std::string_view yaml, std::string_view base_directory,
                                        const v1::ArrayMember& member = {},
                                        const JobRoots& roots = {});

}  // namespace terrace
