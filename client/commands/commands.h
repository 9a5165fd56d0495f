// The commands of the CLI, one file each. Each prints its result to standard output and its error
// to standard error, and returns the process's exit code (base/exit_code.h).
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "client/options.h"
#include "proto/v1/job.pb.h"

namespace terrace {

int RunCommand(const GlobalOptions& global, const RunOptions& options);
int SubmitCommand(const GlobalOptions& global, const SubmitOptions& options);
int ListCommand(const GlobalOptions& global, const ListOptions& options);
int StatusCommand(const GlobalOptions& global, const JobOptions& options);
int WatchCommand(const GlobalOptions& global, const WatchOptions& options);
int MemoryCommand(const GlobalOptions& global, const MemoryOptions& options);
int LogsCommand(const GlobalOptions& global, const LogsOptions& options);
int TraceCommand(const GlobalOptions& global, const TraceOptions& options);
int CancelCommand(const GlobalOptions& global, const CancelOptions& options);
int PauseCommand(const GlobalOptions& global, const PauseOptions& options);
int ResumeCommand(const GlobalOptions& global, const ResumeOptions& options);
int RequeueCommand(const GlobalOptions& global, const RequeueOptions& options);
// Submits an array of jobs; `terrace sweep` shows one.
int SubmitSweep(const GlobalOptions& global, const SubmitOptions& options,
                const std::vector<v1::Dependency>& dependencies);
int SweepCommand(const GlobalOptions& global, const JobOptions& options);
int PlanCommand(const GlobalOptions& global, const PlanOptions& options);
int EvaluateCommand(const GlobalOptions& global, const EvaluateOptions& options);
int ProfileCommand(const GlobalOptions& global, const ProfileOptions& options);
int ExplainCommand(const GlobalOptions& global, const ExplainOptions& options);
int DrainCommand(const GlobalOptions& global, const DrainOptions& options);
int BackupCommand(const GlobalOptions& global, const BackupOptions& options);
int CertsCommand(const GlobalOptions& global, const CertsOptions& options);
int NodesCommand(const GlobalOptions& global);
int SharesCommand(const GlobalOptions& global);
int GenerateCommand(const GlobalOptions& global, const GenerateOptions& options);
int ServeCommand(const GlobalOptions& global, const ServeOptions& options);
int EvalCommand(const GlobalOptions& global, const EvalOptions& options);
int DataCommand(const GlobalOptions& global, const DataOptions& options);
// tokenize and ckpt: the work is done by terrace-rank, which holds the code that reads tokens and
// tensors.
int ToolCommand(const GlobalOptions& global, const ToolOptions& options);
// import and estimate: the work is terrace-coordinator's, which knows specs and models.
int CompilerToolCommand(const GlobalOptions& global, const ToolOptions& options);

}  // namespace terrace
