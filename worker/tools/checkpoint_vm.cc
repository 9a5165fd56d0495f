// SPDX-License-Identifier: Apache-2.0
#include "worker/tools/checkpoint_vm.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/device/groups.h"
#include "worker/rank/program_file.h"
#include "worker/train/initial_state.h"

namespace terrace {

absl::StatusOr<std::unique_ptr<CheckpointVm>> CheckpointVm::Open(const std::string& program,
                                                                 const std::string& checkpoint,
                                                                 std::string_view sequence) {
  std::unique_ptr<CheckpointVm> open(new CheckpointVm());
  ASSIGN_OR_RETURN(open->program_, ReadProgram(program, ""));
  const v1::Program& read = *open->program_;
  if (read.ranks() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(program, ": is for ", read.ranks(), " ranks, must be for one"));
  }
  const int threads = std::max(1, static_cast<int>(read.threads()));
  ASSIGN_OR_RETURN(open->backend_, OpenBackend(read.device(), /*ordinal=*/0));
  ASSIGN_OR_RETURN(open->memory_,
                   ProgramMemory::Reserve(
                       read, MemoryOptions{.threads = threads, .backend = open->backend_.get()}));
  ASSIGN_OR_RETURN(open->groups_, ConnectGroups(read, /*rank=*/0, {}, nullptr));
  ASSIGN_OR_RETURN(open->vm_, Vm::Create(read,
                                         {.threads = threads,
                                          .arenas = open->memory_->arenas(),
                                          .groups = open->groups_,
                                          .backend = open->backend_.get()},
                                         &open->clock_, nullptr));
  if (!open->vm_->Has(sequence)) {
    return absl::InvalidArgumentError(
        absl::StrCat(program, ": has no sequence '", Absl(sequence), "'"));
  }
  RETURN_IF_ERROR(VerifyWeights(checkpoint, CheckpointFiles::kModel));
  RETURN_IF_ERROR(FillInitialState(read, open->memory_->regions(), threads));
  RETURN_IF_ERROR(
      ReadWeights(checkpoint, {read, CoordinatesOf(read.grid(), 0), open->memory_->regions()}));
  if (open->vm_->Has("restore")) {
    NoIo nothing;
    RETURN_IF_ERROR(open->vm_->Run("restore", &nothing));
  }
  return open;
}

}  // namespace terrace
