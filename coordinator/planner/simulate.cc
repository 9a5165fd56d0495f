// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/simulate.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
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
  if (const auto* a = std::get_if<kernels::LossAttrs>(&attrs)) return a->precision;
  return MatmulPrecision::kF32;
}

double Over(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

// Computes how long one instruction takes when nothing else is in its way.
class TimeModel {
 public:
  TimeModel(const v1::Program& program, const v1::HardwareProfile& profile)
      : program_(program), profile_(profile) {}

  absl::StatusOr<double> Seconds(const v1::Instruction& instruction) const {
    std::vector<TensorShape> shapes;
    for (const v1::Operand& operand : instruction.operands()) {
      ASSIGN_OR_RETURN(shapes.emplace_back(), DecodeShape(operand));
    }
    double seconds = 0;
    switch (instruction.kind_case()) {
      case v1::Instruction::kCompute: {
        ASSIGN_OR_RETURN(seconds, ComputeSeconds(instruction.compute(), shapes));
        break;
      }
      case v1::Instruction::kCollective:
        seconds = CollectiveSeconds(instruction.collective(), shapes);
        break;
      default:
        seconds = Over(TotalBytes(shapes), profile_.memory_bytes_per_second());
    }
    return seconds + profile_.instruction_overhead_seconds();
  }

 private:
  absl::StatusOr<double> ComputeSeconds(const v1::ComputeOp& compute,
                                        const std::vector<TensorShape>& shapes) const {
    ASSIGN_OR_RETURN(const DecodedOp decoded, DecodeOp(compute));
    const std::string problem = kernels::CheckShapes(decoded.op, decoded.attrs, shapes);
    if (!problem.empty()) return absl::InvalidArgumentError(problem);
    const double flops = static_cast<double>(kernels::Flops(decoded.op, decoded.attrs, shapes));
    const double bytes =
        static_cast<double>(kernels::BytesMoved(decoded.op, decoded.attrs, shapes));
    const bool bf16 = PrecisionOf(decoded.attrs) == MatmulPrecision::kBF16;
    const double arithmetic =
        Over(flops, bf16 ? profile_.bf16_flops_per_second() : profile_.f32_flops_per_second());
    // Not the larger of the two: a product packs its operands before it computes, and small
    // products show it.
    return arithmetic + Over(bytes, profile_.memory_bytes_per_second());
  }

  // Ring algorithms: an all-reduce sends 2 (N - 1) / N of the bytes in 2 (N - 1) messages, a
  // broadcast half of it.
  double CollectiveSeconds(const v1::CollectiveOp& op,
                           const std::vector<TensorShape>& shapes) const {
    if (op.group() >= static_cast<uint32_t>(program_.groups_size())) return 0;
    const double ranks = GroupSize(program_.grid(), program_.groups(op.group()));
    const double rounds = (op.kind() == v1::ALL_REDUCE ? 2 : 1) * (ranks - 1);
    return rounds * (Over(TotalBytes(shapes) / ranks, profile_.link_bytes_per_second()) +
                     profile_.link_latency_seconds());
  }

  static double TotalBytes(const std::vector<TensorShape>& shapes) {
    double bytes = 0;
    for (const TensorShape& shape : shapes) bytes += static_cast<double>(shape.SpanBytes());
    return bytes;
  }

  const v1::Program& program_;
  const v1::HardwareProfile& profile_;
};

const v1::Sequence* FindSequence(const v1::Program& program, std::string_view name) {
  for (const v1::Sequence& sequence : program.sequences()) {
    if (sequence.name() == name) return &sequence;
  }
  return nullptr;
}

bool IsCompute(const v1::Program& program, uint32_t stream) {
  return program.streams(stream).kind() == v1::COMPUTE;
}

// An instruction starts when its stream is free and its waits are over. Streams run at the same
// time and do not slow each other down. List order is a valid order of events, since waits point
// backwards.
struct Run {
  const v1::Program& program;
  const v1::Sequence& sequence;
  Simulation result;
  std::vector<double> stream_free;  // by stream

  void Step(int i, double seconds) {
    const v1::Instruction& instruction = sequence.instructions(i);
    const double idle_from = stream_free[instruction.stream()];
    double start = idle_from;
    bool waits_for_collective = false;
    for (uint32_t wait : instruction.waits()) {
      if (result.instructions[wait].end_seconds <= start) continue;
      start = result.instructions[wait].end_seconds;
      waits_for_collective = sequence.instructions(wait).has_collective();
    }
    result.instructions.push_back({start, start + seconds});
    stream_free[instruction.stream()] = start + seconds;
    result.step_seconds = std::max(result.step_seconds, start + seconds);
    if (!IsCompute(program, instruction.stream())) return;
    result.compute_seconds += seconds;
    if (instruction.phase() == v1::OPTIMIZER_STEP) result.optimizer_seconds += seconds;
    if (waits_for_collective) result.exposed_communication_seconds += start - idle_from;
  }
};

}  // namespace

absl::StatusOr<Simulation> Simulate(const v1::Program& program, std::string_view sequence_name,
                                    const v1::HardwareProfile& profile) {
  const v1::Sequence* sequence = FindSequence(program, sequence_name);
  if (sequence == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequence '", Absl(sequence_name), "': the program has none of that name"));
  }
  const TimeModel model(program, profile);
  Run run = {.program = program,
             .sequence = *sequence,
             .result = {},
             .stream_free = std::vector<double>(program.streams_size(), 0)};
  run.result.instructions.reserve(sequence->instructions_size());
  for (int i = 0; i < sequence->instructions_size(); ++i) {
    const absl::StatusOr<double> seconds = model.Seconds(sequence->instructions(i));
    if (!seconds.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("instruction ", i, ": ", seconds.status().message()));
    }
    run.Step(i, *seconds);
  }
  return std::move(run.result);
}

}  // namespace terrace
