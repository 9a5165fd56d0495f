// Programs of instructions that do next to nothing, executed by the VM itself.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/status_macros.h"
#include "kernels/op.h"
#include "proto/program/op_codec.h"
#include "proto/v1/program.pb.h"
#include "worker/memory/arena.h"
#include "worker/probe/memory.h"
#include "worker/vm/vm.h"

namespace terrace {
namespace {

constexpr int kInstructions = 200;
constexpr int kRoundsMin = 3, kRoundsMax = 25;
constexpr double kSecondsMax = 1;  // on a machine so busy that rounds take long
constexpr int64_t kElements = 4;
constexpr int64_t kElementsOfAThread = 2 * 32768;  // so that every thread of a rank takes part
constexpr int64_t kAlignment = 64;

v1::Operand* AddOperand(v1::Access access, uint32_t buffer, int64_t elements,
                        v1::Instruction* instruction) {
  v1::Operand* operand = instruction->add_operands();
  operand->set_access(access);
  operand->set_buffer(buffer);
  operand->set_dtype(v1::F32);
  operand->add_shape(elements);
  return operand;
}

// Bytes from the start of one buffer to that of the next.
int64_t Stride(int64_t elements) {
  return (elements * int64_t{sizeof(float)} + kAlignment - 1) / kAlignment * kAlignment;
}

// `alternate`: each instruction waits for the one before it, on the other stream.
v1::Program Adds(int64_t elements, bool alternate) {
  v1::Program program;
  program.add_streams()->set_kind(v1::COMPUTE);
  program.add_streams()->set_kind(v1::HOST_COMPUTE);
  program.add_arenas()->set_tier(v1::DEVICE);
  for (uint32_t id : {0, 1}) {
    v1::Buffer* buffer = program.add_buffers();
    buffer->set_id(id);
    buffer->set_offset(id * Stride(elements));
    buffer->set_dtype(v1::F32);
  }
  v1::Sequence* sequence = program.add_sequences();
  sequence->set_name("train");
  for (int i = 0; i < kInstructions; ++i) {
    v1::Instruction* instruction = sequence->add_instructions();
    instruction->set_id(i);
    instruction->set_stream(alternate ? i % 2 : 0);
    if (alternate && i > 0) instruction->add_waits(i - 1);
    EncodeOp(kernels::Op::kAdd, kernels::NoAttrs{}, instruction->mutable_compute());
    AddOperand(v1::READ, 0, elements, instruction);
    AddOperand(v1::UPDATE, 1, elements, instruction);
  }
  return program;
}

// Of one instruction.
absl::StatusOr<double> Seconds(int64_t elements, bool alternate, int threads) {
  const v1::Program program = Adds(elements, alternate);
  ASSIGN_OR_RETURN(const Arena memory,
                   Arena::Reserve("terrace-arena-probe-streams", 2 * Stride(elements)));
  std::byte* const arena = memory.data();
  const SystemClock clock;
  ASSIGN_OR_RETURN(const std::unique_ptr<Vm> vm,
                   Vm::Create(program, {.threads = threads, .arenas = {&arena, 1}, .groups = {}},
                              &clock, /*fence=*/nullptr));
  NoIo io;
  std::vector<double> seconds;
  const int64_t first_ns = clock.MonotonicNanos();
  for (int round = 0; round < kRoundsMax; ++round) {
    const int64_t start_ns = clock.MonotonicNanos();
    const double passed = static_cast<double>(start_ns - first_ns) * 1e-9;
    if (round >= kRoundsMin && passed > kSecondsMax) break;
    RETURN_IF_ERROR(vm->Run("train", &io));
    seconds.push_back(static_cast<double>(clock.MonotonicNanos() - start_ns) * 1e-9 /
                      kInstructions);
  }
  // A busy machine stretches a hand-over without end: the fastest round is what it takes.
  return *std::min_element(seconds.begin(), seconds.end());
}

// How much longer an instruction takes that waited for one on another stream.
absl::StatusOr<double> Waking(int64_t elements, int threads) {
  ASSIGN_OR_RETURN(const double alone, Seconds(elements, /*alternate=*/false, threads));
  ASSIGN_OR_RETURN(const double alternating, Seconds(elements, /*alternate=*/true, threads));
  return std::max(0.0, alternating - alone);
}

}  // namespace

absl::Status MeasureStreams(int threads, v1::HardwareProfile* profile) {
  ASSIGN_OR_RETURN(const double alone, Seconds(kElements, /*alternate=*/false, threads));
  ASSIGN_OR_RETURN(const double wake, Waking(kElements, threads));
  profile->set_instruction_overhead_seconds(alone);
  profile->set_wake_seconds(wake);
  profile->clear_team_wake_seconds();
  if (threads == 1) return absl::OkStatus();
  // Each stream has threads of its own, and those that wait for work soon sleep.
  ASSIGN_OR_RETURN(const double team, Waking(kElementsOfAThread * threads, threads));
  profile->set_team_wake_seconds(std::max(0.0, team - wake));
  return absl::OkStatus();
}

}  // namespace terrace
