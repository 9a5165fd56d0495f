// A program of one rank with the weights of a checkpoint, ready to run: what the tools that only
// compute forward share.
//
// Owns the memory, which is as large as the program says. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "worker/device/backend.h"
#include "worker/rank/program_memory.h"
#include "worker/vm/vm.h"

namespace terrace {

class CheckpointVm {
 public:
  // Checks the program, compares the checksums of the checkpoint (others' weights have none) and
  // reads the weights. INVALID_ARGUMENT when the program is for several ranks or has no sequence of
  // that name; DATA_LOSS, with the file, when a byte has changed; what reading and reserving memory
  // say.
  static absl::StatusOr<std::unique_ptr<CheckpointVm>> Open(const std::string& program,
                                                            const std::string& checkpoint,
                                                            std::string_view sequence);

  const v1::Program& program() const { return *program_; }
  Vm& vm() { return *vm_; }

 private:
  CheckpointVm() = default;

  std::unique_ptr<v1::Program> program_;
  std::unique_ptr<Backend> backend_;
  std::optional<ProgramMemory> memory_;
  std::vector<std::unique_ptr<Communicator>> groups_;
  const SystemClock clock_;
  std::unique_ptr<Vm> vm_;
};

}  // namespace terrace
