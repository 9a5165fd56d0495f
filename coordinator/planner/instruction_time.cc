// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/instruction_time.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "coordinator/planner/profiles.h"
#include "kernels/op.h"
#include "proto/grid.h"
#include "proto/op_codec.h"

namespace terrace {
namespace {

using kernels::MatmulPrecision;
using kernels::OpAttrs;
using kernels::TensorShape;

// The arithmetic an op's products are done in; f32 for ops without products.
MatmulPrecision PrecisionOf(const OpAttrs& attrs) {
  if (const auto* a = std::get_if<kernels::MatmulAttrs>(&attrs)) return a->precision;
  if (const auto* a = std::get_if<kernels::AttentionAttrs>(&attrs)) return a->precision;
  if (const auto* a = std::get_if<kernels::AttentionBlockAttrs>(&attrs)) return a->precision;
  if (const auto* a = std::get_if<kernels::LossAttrs>(&attrs)) return a->precision;
  return MatmulPrecision::kF32;
}

double Over(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

double Bytes(const TensorShape& shape) { return static_cast<double>(shape.SpanBytes()); }

absl::StatusOr<double> ComputeSeconds(const v1::ComputeOp& compute,
                                      const std::vector<TensorShape>& shapes, bool on_host,
                                      const v1::HardwareProfile& profile) {
  ASSIGN_OR_RETURN(const DecodedOp decoded, DecodeOp(compute));
  const std::string problem = kernels::CheckShapes(decoded.op, decoded.attrs, shapes);
  if (!problem.empty()) return absl::InvalidArgumentError(problem);
  const double flops = static_cast<double>(kernels::Flops(decoded.op, decoded.attrs, shapes));
  const double bytes = static_cast<double>(kernels::BytesMoved(decoded.op, decoded.attrs, shapes));
  // Sums and updates: arithmetic is nothing beside their traffic.
  if (on_host) return bytes / TierRatesOf(profile).host_memory;
  const bool bf16 = PrecisionOf(decoded.attrs) == MatmulPrecision::kBF16;
  // Not the larger of the two: a product packs its operands before it computes, and small products
  // show it.
  return Over(flops, bf16 ? profile.bf16_flops_per_second() : profile.f32_flops_per_second()) +
         Over(bytes, profile.memory_bytes_per_second());
}

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

bool OnHost(const v1::Program& program, const v1::Instruction& instruction) {
  return instruction.stream() < static_cast<uint32_t>(program.streams_size()) &&
         program.streams(static_cast<int>(instruction.stream())).kind() == v1::HOST_COMPUTE;
}

// Rounds of a ring in which each member sends one message of `share` bytes.
struct Ring {
  double rounds = 0;
  double share = 0;
};
Ring RingOf(v1::CollectiveKind kind, double members, const std::vector<TensorShape>& shapes) {
  // The larger operand is what the group works on as a whole: the smaller is one member's part.
  double whole = 0;
  for (const TensorShape& shape : shapes) whole = std::max(whole, Bytes(shape));
  if (members <= 1) return {};
  if (kind == v1::RING_SHIFT) return {.rounds = 1, .share = whole};
  return {.rounds = (kind == v1::ALL_REDUCE ? 2 : 1) * (members - 1), .share = whole / members};
}

}  // namespace

absl::StatusOr<double> InstructionSeconds(const v1::Program& program,
                                          const v1::Instruction& instruction,
                                          const v1::HardwareProfile& profile) {
  std::vector<TensorShape> shapes;
  double bytes = 0;
  for (const v1::Operand& operand : instruction.operands()) {
    ASSIGN_OR_RETURN(shapes.emplace_back(), DecodeShape(operand));
    bytes += Bytes(shapes.back());
  }
  double seconds = 0;
  if (instruction.has_compute()) {
    ASSIGN_OR_RETURN(seconds, ComputeSeconds(instruction.compute(), shapes,
                                             OnHost(program, instruction), profile));
  } else if (instruction.has_collective()) {
    const v1::CollectiveOp& op = instruction.collective();
    if (op.group() >= static_cast<uint32_t>(program.groups_size())) {
      return absl::InvalidArgumentError("the collective's group does not exist");
    }
    const Ring ring =
        RingOf(op.kind(), GroupSize(program.grid(), program.groups(op.group())), shapes);
    seconds = ring.rounds *
              (Over(ring.share, profile.link_bytes_per_second()) + profile.link_latency_seconds());
  } else if (instruction.has_transfer()) {
    seconds = Over(bytes, profile.link_bytes_per_second()) + profile.link_latency_seconds();
  } else if (instruction.has_copy()) {
    // Every byte is an operand twice: where it is read and where it is written.
    seconds = bytes / 2 / CopyRate(instruction.copy().kind(), TierRatesOf(profile));
  } else {
    seconds = Over(bytes, profile.memory_bytes_per_second());
  }
  return seconds + profile.instruction_overhead_seconds();
}

}  // namespace terrace
