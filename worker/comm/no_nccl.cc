// What a build says of NCCL when its toolkit had none.
//
// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "worker/comm/nccl_communicator.h"

namespace terrace {

absl::StatusOr<std::unique_ptr<NcclCommunicator>> ConnectNccl(const GroupOptions& options,
                                                              RendezvousStore*, CUstream_st*,
                                                              const NcclMemory*) {
  return absl::FailedPreconditionError(
      absl::StrCat("group ", options.name, ": ", options.size,
                   " GPUs cannot communicate: this build has no NCCL; install its headers and "
                   "library beside the "
                   "CUDA toolkit and build again, or use a bundle"));
}

}  // namespace terrace
