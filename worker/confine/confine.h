// A rank confines itself before it reads anything that others wrote and before it has threads.
// What only its worker can do for it is in privileges.h.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/job_roots.h"
#include "proto/v1/worker.pb.h"

namespace terrace {

struct ConfineOptions {
  JobRoots roots;
  bool sandbox = true;  // Landlock and seccomp, as far as the kernel has them
};

// As options of `terrace-rank run`.
std::vector<std::string> ArgumentsOf(const ConfineOptions& options);

// "Landlock 7, seccomp"; what the kernel lacks is named as lacking.
std::string DescribeSandbox();

// Of the process that renders chat templates for a rank: it reads the system's libraries and what
// belongs to `python`, changes no file, and makes no sockets. REQUIRES: one thread.
absl::Status ConfineTemplates(const std::string& python, const ConfineOptions& options);

// Gives up all but what the job needs. REQUIRES: the process has one thread; the folders that the
// job writes into are there, since nothing can be allowed that is not.
absl::Status ConfineRank(const v1::RankConfig& config, const ConfineOptions& options);

}  // namespace terrace
