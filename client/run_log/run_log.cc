// SPDX-License-Identifier: Apache-2.0
#include "client/run_log/run_log.h"

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace terrace {
namespace {

absl::Status OfOption(std::string_view option, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(Absl(option), ": ", status.message()));
}

}  // namespace

absl::StatusOr<RunLogs> RunLogs::Open(const RunLogOptions& options, const v1::Job& job) {
  RunLogs logs;
  const auto take = [&](std::string option, absl::StatusOr<std::unique_ptr<RunLog>> log) {
    if (log.ok()) logs.logs_.push_back({option, *std::move(log)});
    return OfOption(option, log.status());
  };
  if (!options.csv.empty()) RETURN_IF_ERROR(take("--csv", OpenCsv(options.csv)));
  if (!options.tensorboard.empty()) {
    RETURN_IF_ERROR(take("--tensorboard", OpenTensorBoard(options.tensorboard, job)));
  }
  if (!options.wandb.empty()) RETURN_IF_ERROR(take("--wandb", OpenWandb(options.wandb, job)));
  return logs;
}

absl::Status RunLogs::Check(const RunLogOptions& options) {
  if (!options.csv.empty()) RETURN_IF_ERROR(OfOption("--csv", OpenCsv(options.csv).status()));
  if (!options.tensorboard.empty()) {
    RETURN_IF_ERROR(OfOption("--tensorboard", MakeDirectories(options.tensorboard)));
  }
  if (options.wandb.empty()) return absl::OkStatus();
  return OfOption("--wandb", MakeDirectories(options.wandb));
}

template <typename Write>
void RunLogs::ForEach(Write write) {
  std::erase_if(logs_, [&](Named& named) {
    const absl::Status status = write(*named.log);
    if (status.ok()) return false;
    std::fprintf(stderr, "warning: %s: %s; the job goes on and is not logged there any more\n",
                 named.option.c_str(), std::string(status.message()).c_str());
    return true;
  });
}

void RunLogs::Add(const v1::JobEvent& event) {
  ForEach([&](RunLog& log) { return log.Add(event); });
}

void RunLogs::Finish(const v1::Job& job) {
  ForEach([&](RunLog& log) { return log.Finish(job); });
  logs_.clear();
}

}  // namespace terrace
