// The coordinator's compiler as a tool on one machine: plan, explain and the programs of `terrace
// generate` and `terrace eval`.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/prepare/prepare.h"

namespace terrace {

// A spec and what it may use.
struct JobHere {
  v1::JobSpec spec;
  Budget budget;
};

// Reads the spec file. It may use this machine: its cores, memory and the profile that
// `terrace-rank probe` measures (kept in the user's cache folder), or the one in `profile_path`,
// what `terrace profile -o json` printed. FAILED_PRECONDITION when that is of other hardware.
absl::StatusOr<JobHere> ReadJobHere(const std::string& spec_path, const std::string& profile_path);

// The same, prepared. `tell`: as of PrepareAnyway().
absl::StatusOr<Prepared> PrepareFile(const std::string& spec_path,
                                     const std::string& profile_path = "",
                                     const TellSearch& tell = {});

// Writes what `terrace data` needs to know of a spec, a v1::DataRequest.
absl::Status WriteDataRequest(const std::string& spec_path, const std::string& output);

struct GenerateProgramOptions {
  int64_t context = 0;  // tokens of a text; 0: as many as the spec's rows have
  int64_t texts = 1;
  bool scores = false;  // with the sequence that scores the tokens of prompts
};
// Writes the program that continues texts by a checkpoint: the model in its config.json, the
// precision in the spec of its manifest.json.
absl::Status WriteGenerateProgram(const std::string& checkpoint,
                                  const GenerateProgramOptions& options, const std::string& output);

struct EvalProgramOptions {
  int64_t sequence_length = 0;  // 0: that of the spec
  int64_t batch = 1;            // rows
};
// The same of the loss of rows.
absl::Status WriteEvalProgram(const std::string& checkpoint, const EvalProgramOptions& options,
                              const std::string& output);

}  // namespace terrace
