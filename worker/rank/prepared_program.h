// A program as the VM executes it: decoded once, operands resolved to addresses, one flat list of
// instructions a stream.
//
// Waits are resolved as well: an instruction waits for a position on another stream, and waits that
// an earlier one of the same stream implies are dropped. Nothing here changes after preparation,
// except the times that each execution leaves.
//
// Borrows the program and the arenas. Used only by the VM's threads, each its own stream.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/kernel.h"
#include "proto/v1/program.pb.h"
#include "worker/comm/communicator.h"
#include "worker/rank/sequence_io.h"

namespace terrace {

struct PreparedInstruction;
using Handler = absl::Status (*)(const PreparedInstruction& instruction, SequenceIo* io);

// Until the first `position` instructions of `stream` have finished.
struct WaitPoint {
  uint32_t stream = 0;
  int32_t position = 0;
};

struct PreparedInstruction {
  Handler run = nullptr;
  kernels::Kernel kernel = nullptr;  // of a compute instruction
  kernels::OpAttrs attrs;
  kernels::Context context;
  Communicator* group = nullptr;  // of a collective or a transfer
  int peer = 0;                   // of a transfer: the other member
  std::vector<kernels::TensorView> operands;
  std::vector<WaitPoint> waits;
  bool waits_for_communication = false;  // for a collective or a transfer
  bool writes_state = false;             // touches what checkpoints are written from
  const v1::Instruction* source = nullptr;
};

// When an instruction ran, in nanoseconds of the VM's clock.
struct Slice {
  int64_t start_ns = 0;
  int64_t end_ns = 0;
};

// True for the streams whose instructions need other ranks.
bool IsCommunication(v1::StreamKind kind);

struct PreparedStream {
  v1::StreamKind kind = v1::STREAM_UNSPECIFIED;
  std::vector<PreparedInstruction> instructions;
  std::vector<Slice> slices;  // of the last execution, one an instruction
};

struct PreparedSequence {
  std::string name;
  std::vector<PreparedStream> streams;  // by index in Program.streams
};

struct PrepareOptions {
  int threads = 1;                                        // of the compute stream
  std::span<std::byte* const> arenas;                     // by Arena.id
  std::span<const std::unique_ptr<Communicator>> groups;  // by index in Program.groups (groups.h)
  uint32_t rank = 0;                                      // whose part of the program this is
};

// INVALID_ARGUMENT when an instruction does not decode or asks for what this rank cannot do.
// REQUIRES: CheckProgram passed.
absl::StatusOr<PreparedSequence> PrepareSequence(const v1::Program& program,
                                                 const v1::Sequence& sequence,
                                                 const PrepareOptions& options);

}  // namespace terrace
