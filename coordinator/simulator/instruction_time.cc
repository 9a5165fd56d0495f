// SPDX-License-Identifier: Apache-2.0
#include "coordinator/simulator/instruction_time.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "coordinator/hardware/profiles.h"
#include "coordinator/simulator/link_time.h"
#include "kernels/tensor_view.h"
#include "proto/program/op_codec.h"

namespace terrace {
namespace {

using kernels::TensorShape;

double CopyRate(v1::CopyKind kind, const TierRates& rates) {
  switch (kind) {
    case v1::TO_HOST:
      return rates.to_host;
    case v1::NVME_LOAD:
      return rates.nvme_read;
    case v1::NVME_STORE:
      return rates.nvme_write;
    default:
      return rates.to_device;
  }
}

// From here on a kernel of the CPU backend has several threads (kernels/cpu/parallel.h).
constexpr int64_t kElementsOfATeam = 2 * 32768;

bool OnHost(const v1::Program& program, const v1::Instruction& instruction) {
  return instruction.stream() < static_cast<uint32_t>(program.streams_size()) &&
         program.streams(static_cast<int>(instruction.stream())).kind() == v1::HOST_COMPUTE;
}

}  // namespace

absl::StatusOr<double> InstructionTime::Seconds(const v1::Program& program,
                                                const v1::Instruction& instruction,
                                                double cached) const {
  std::vector<TensorShape> shapes;
  double bytes = 0, largest = 0;
  for (const v1::Operand& operand : instruction.operands()) {
    ASSIGN_OR_RETURN(shapes.emplace_back(), DecodeShape(operand));
    const auto span = static_cast<double>(shapes.back().SpanBytes());
    bytes += span;
    largest = std::max(largest, span);
  }
  double seconds = 0;
  if (instruction.has_compute()) {
    ASSIGN_OR_RETURN(seconds, compute_.Seconds(instruction.compute(), shapes,
                                               OnHost(program, instruction), cached));
  } else if (instruction.has_collective() || instruction.has_transfer()) {
    // The larger operand is what the group works on as a whole: the smaller is one member's part.
    ASSIGN_OR_RETURN(seconds, CommunicationSeconds(program, instruction, largest, profile_));
  } else if (instruction.has_copy()) {
    // Every byte is an operand twice: where it is read and where it is written.
    seconds = bytes / 2 / CopyRate(instruction.copy().kind(), TierRatesOf(profile_));
  } else if (profile_.memory_bytes_per_second() > 0) {
    seconds = bytes / profile_.memory_bytes_per_second();
  }
  return seconds + profile_.instruction_overhead_seconds();
}

double InstructionTime::WakeSeconds(const v1::Instruction& instruction) const {
  int64_t largest = 0;
  for (const v1::Operand& operand : instruction.operands()) {
    const absl::StatusOr<TensorShape> shape = DecodeShape(operand);
    if (shape.ok()) largest = std::max(largest, shape->Elements());
  }
  const bool team = instruction.has_compute() && largest >= kElementsOfATeam;
  return profile_.wake_seconds() + (team ? profile_.team_wake_seconds() : 0);
}

double InstructionTime::Contention(const v1::Program& program, const v1::Instruction& instruction,
                                   double seconds) const {
  if (!instruction.has_collective() && !instruction.has_transfer()) return 0;
  double largest = 0;
  for (const v1::Operand& operand : instruction.operands()) {
    const absl::StatusOr<TensorShape> shape = DecodeShape(operand);
    if (shape.ok()) largest = std::max(largest, static_cast<double>(shape->SpanBytes()));
  }
  return ContendedShare(program, instruction, largest, seconds, profile_);
}

}  // namespace terrace
