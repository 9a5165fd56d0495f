// The job spec: YAML in, validated JobSpec out. The only place where user input is checked;
// everything after trusts it.
//
// All problems are reported at once, each as "line L, column C: path: got X, must be Y; try Z".
// Unknown keys are errors with a did-you-mean. Limits: 1 MiB of text, 16 levels, 10,000 nodes. The
// table of keys (keys.h) also gives the JSON schema.
//
// Pure: files are read by the caller (ReadModelConfig in planning/inputs.h). Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "proto/v1/job.pb.h"

namespace terrace {

// Relative paths become absolute against `base_directory`. model.config_json is filled for presets
// and inline mappings; for a path it is left empty: the caller reads the file.
// With the values of `member` in place of what the text has, and in its folder of
// checkpoint.directory (overrides.h) unless that is one of the values.
absl::StatusOr<v1::JobSpec> ParseJobSpec(std::string_view yaml, std::string_view base_directory,
                                         const v1::ArrayMember& member = {});

// The JSON Schema (draft 2020-12) of the spec, for editors; pretty-printed, ends with a newline.
std::string JobSpecJsonSchema();

}  // namespace terrace
