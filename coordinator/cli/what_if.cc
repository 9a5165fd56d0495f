// SPDX-License-Identifier: Apache-2.0
#include "coordinator/cli/what_if.h"

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/pipe_text.h"
#include "base/status_macros.h"
#include "coordinator/hardware/cluster.h"
#include "coordinator/hardware/cluster_file.h"
#include "coordinator/planning/inputs.h"
#include "coordinator/prepare/uncertainty.h"

namespace terrace {
namespace {

bool IsPath(const std::string& cluster) {
  return absl::StrContains(cluster, "/") || absl::EndsWith(cluster, ".yaml") ||
         absl::EndsWith(cluster, ".yml");
}

absl::StatusOr<Cluster> ReadCluster(const std::string& cluster) {
  if (!IsPath(cluster)) return ParseCluster(cluster);
  ASSIGN_OR_RETURN(const std::string yaml, ReadTextFile(cluster, kClusterBytesMax));
  absl::StatusOr<Cluster> read = ParseClusterFile(yaml);
  if (read.ok()) return read;
  return absl::Status(read.status().code(), absl::StrCat(cluster, ": ", read.status().message()));
}

}  // namespace

absl::StatusOr<WhatIfJob> ReadWhatIfJob(const std::string& spec_path, const std::string& cluster) {
  ASSIGN_OR_RETURN(const Cluster paper, ReadCluster(cluster));
  ASSIGN_OR_RETURN(const std::string yaml, ReadTextOrPipe(spec_path, kSpecBytesMax));
  WhatIfJob job;
  ASSIGN_OR_RETURN(job.spec, ReadJobSpec(yaml, FolderOf(spec_path)));
  RETURN_IF_ERROR(ApplyCluster(paper, &job.spec, WrittenIn(yaml)));
  job.budget = WhatIfBudget(job.spec, paper);
  job.why_not_runnable = paper.why_not_runnable;
  return job;
}

absl::StatusOr<Prepared> PrepareWhatIf(const std::string& spec_path, const std::string& cluster,
                                       const TellSearch& tell) {
  ASSIGN_OR_RETURN(const WhatIfJob job, ReadWhatIfJob(spec_path, cluster));
  ASSIGN_OR_RETURN(Prepared prepared, PrepareAnyway(job.spec, job.budget, tell));
  if (!job.why_not_runnable.empty()) prepared.plan.add_remarks(job.why_not_runnable);
  RETURN_IF_ERROR(ReportUncertainty(job.spec, job.budget, &prepared.plan));
  return prepared;
}

}  // namespace terrace
