// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/nvme/nvme_io.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "worker/memory/nvme/nvme_threads.h"
#include "worker/memory/nvme/nvme_uring.h"

namespace terrace {

absl::StatusOr<std::unique_ptr<BlockIo>> NewBlockIo(std::string_view engine,
                                                    std::span<const int> files, int depth) {
  if (engine == "threads") return ThreadIo::Create(files, depth, "");
  if (!engine.empty() && engine != "auto" && engine != "io_uring") {
    return absl::InvalidArgumentError(absl::StrCat(
        "nvme.engine: \"", Absl(engine), "\" is none of \"auto\", \"io_uring\", \"threads\""));
  }
  auto uring = UringIo::Create(files, depth);
  if (uring.ok()) return std::unique_ptr<BlockIo>(std::move(uring).value());
  if (engine == "io_uring") {
    return absl::FailedPreconditionError(
        absl::StrCat("nvme.engine: io_uring: ", uring.status().message(),
                     "; let the system allow it (sysctl kernel.io_uring_disabled=0, the "
                     "container's seccomp profile) or choose engine: auto"));
  }
  return ThreadIo::Create(files, depth, Std(uring.status().message()));
}

}  // namespace terrace
