// A program as the VM executes it: decoded once, operands resolved to addresses, one flat list of
// instructions a stream.
//
// Waits are resolved as well: an instruction waits for a position on another stream, and waits that
// an earlier one of the same stream implies are dropped. Nothing here changes after preparation,
// except the times that each execution leaves, what an instruction of a loop touches in the present
// iteration (moves.h) and, in caching mode, addresses of step buffers.
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
#include "kernels/cuda/context.h"
#include "kernels/kernel.h"
#include "proto/program/played.h"
#include "proto/v1/program.pb.h"
#include "worker/comm/communicator.h"
#include "worker/device/backend.h"
#include "worker/flight/flight_recorder.h"
#include "worker/memory/nvme/nvme_file.h"
#include "worker/memory/nvme/nvme_queue.h"
#include "worker/vm/moves.h"
#include "worker/vm/played_cursor.h"
#include "worker/vm/sequence_io.h"

namespace terrace {

class DynamicMemory;
struct PreparedInstruction;
using Handler = absl::Status (*)(const PreparedInstruction& instruction, SequenceIo* io);

// Until `stream` has executed `position` instructions. In a loop that is iteration 0's; each
// further iteration waits for `step` more.
struct WaitPoint {
  uint32_t stream = 0;
  int32_t position = 0;
  int32_t step = 0;

  int32_t At(int32_t iteration) const { return position + iteration * step; }
};

inline constexpr int32_t kAnyTime = -1;
// Of all streams of a sequence, each iteration of a loop counted: positions are 32 bits wide.
inline constexpr int64_t kPlayedMax = int64_t{1} << 30;

struct PreparedInstruction : KernelCall {
  Handler run = nullptr;
  // Of a compute instruction on the host; in a queue it is device_kernel.
  kernels::Kernel kernel = nullptr;
  DeviceQueue* queue = nullptr;  // of the stream; null: `run` does all of it
  // In a queue, where `run` only launches and uses no io: what the host does before that, and when
  // the instruction has finished; either may be null.
  Handler before = nullptr;
  Handler finish = nullptr;
  Communicator* group = nullptr;  // of a collective or a transfer
  int peer = 0;                   // of a transfer: the other member
  NvmeQueue* nvme = nullptr;      // of a copy from or to NVMe
  std::vector<NvmePiece> pieces;  // of the same: what it moves
  int64_t copied_bytes = 0;       // of a copy
  // Of an input or output in a queue: the host's side of each operand.
  std::vector<kernels::TensorView> staged;
  std::vector<WaitPoint> waits;
  bool writes_state = false;  // touches what checkpoints are written from
  // Of a collective where only one may be called at a time: how many of the sequence come before
  // it, and how many more with each iteration of its loop.
  int32_t turn = kAnyTime;
  int32_t turn_step = 0;
  // Of the present iteration, and what it adds in each.
  int32_t micro_batch = -1;
  int32_t micro_batch_step = 0;
  std::vector<Move> moves;  // in a loop
  const v1::Instruction* source = nullptr;

  // Makes it touch what it touches in that iteration of its loop. By the thread of its stream,
  // before it runs or is launched.
  void MoveTo(int32_t iteration);
};

// When an instruction ran, in nanoseconds of the VM's clock.
struct Slice {
  int64_t start_ns = 0;
  int64_t end_ns = 0;
};

// What somebody who waits for an instruction waits for.
enum class WorkKind {
  kCompute,        // and inputs and outputs
  kCommunication,  // needs other ranks
  kOffload,        // copies between tiers and computation on the host
};
WorkKind WorkOf(const PreparedInstruction& instruction, v1::StreamKind stream);

struct PreparedStream {
  v1::StreamKind kind = v1::STREAM_UNSPECIFIED;
  DeviceQueue* queue = nullptr;  // null: its thread executes it
  // Of collectives: where they are when a graph holds them. Null: none does.
  DeviceQueue* captured = nullptr;
  std::vector<PreparedInstruction> instructions;
  std::vector<Slice> slices;          // of the last execution, one a recorded instruction
  std::vector<RecordedLoop> loops{};  // in order; empty: the list is straight

  PlayedCursor cursor() const { return {loops, instructions.size()}; }
  // How many it executes.
  int32_t played() const { return static_cast<int32_t>(CountPlayed(loops, instructions.size())); }
};

// How many marks its queue needs: so many instructions can be in flight at once. Of what a loop
// executes there is no end, so there they are used in turn.
inline constexpr int32_t kMarksInLoopsMin = 1024;
int32_t MarksOf(const PreparedStream& stream);

// What must happen before an instruction can run, when all that it waits for has: it gets memory
// (dynamic_memory.h). Called by the thread of the instruction's stream.
class Launcher {
 public:
  virtual ~Launcher() = default;
  virtual absl::Status Launch(const PreparedInstruction& instruction) = 0;
};

struct PreparedSequence {
  std::string name;
  std::vector<PreparedStream> streams;  // by index in Program.streams
  Launcher* launcher = nullptr;         // null: all addresses are there
};

struct PrepareOptions {
  int threads = 1;  // of the compute stream
  // By Arena.id. Null: it cannot be addressed, only copied to and from.
  std::span<std::byte* const> arenas;
  std::span<const std::unique_ptr<Communicator>> groups;  // by index in Program.groups (groups.h)
  uint32_t rank = 0;                                      // whose part of the program this is
  NvmeFile* nvme = nullptr;                               // the rank's file; null: it has none
  FlightWriter* flight = nullptr;                         // null: nobody watches
  DynamicMemory* dynamic = nullptr;                       // null: the program is planned
  Backend* backend = nullptr;                             // null: the CPU
};

// By index in Program.streams; null for those that copy nothing from or to NVMe.
using NvmeQueues = std::span<const std::unique_ptr<NvmeQueue>>;
// By index in Program.streams; null for those that their threads execute. Empty: all of them.
using DeviceQueues = std::span<const std::unique_ptr<DeviceQueue>>;

// INVALID_ARGUMENT when an instruction does not decode or asks for what this rank cannot do.
// REQUIRES: CheckProgram passed.
absl::StatusOr<PreparedSequence> PrepareSequence(const v1::Program& program,
                                                 const v1::Sequence& sequence,
                                                 const PrepareOptions& options,
                                                 NvmeQueues nvme_queues, DeviceQueues queues);

}  // namespace terrace
