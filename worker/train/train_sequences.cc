// SPDX-License-Identifier: Apache-2.0
#include "worker/train/train_sequences.h"

#include <vector>

#include "proto/program/loops.h"
#include "proto/program/op_codec.h"
#include "proto/program/sequences.h"

namespace terrace {
namespace {

// Floating-point operations of its computations, of a loop's in every iteration. The program was
// checked: all of it decodes.
double FlopsOf(const v1::Sequence& sequence) {
  double flops = 0;
  const LoopIndex loops(sequence);
  for (int i = 0; i < sequence.instructions_size(); ++i) {
    const v1::Instruction& instruction = sequence.instructions(i);
    if (!instruction.has_compute()) continue;
    const absl::StatusOr<DecodedOp> op = DecodeOp(instruction.compute());
    std::vector<kernels::TensorShape> shapes;
    for (const v1::Operand& operand : instruction.operands()) {
      const absl::StatusOr<kernels::TensorShape> shape = DecodeShape(operand);
      if (shape.ok()) shapes.push_back(*shape);
    }
    if (!op.ok() || static_cast<int>(shapes.size()) != instruction.operands_size()) continue;
    flops += static_cast<double>(kernels::Flops(op->op, op->attrs, shapes)) *
             static_cast<double>(loops.TripsOf(i));
  }
  return flops;
}

}  // namespace

// The rules have the model FLOPs of the longest; what a shorter one has of them is what it computes
// of the longest's operations.
TrainSequences::TrainSequences(const v1::Program& program) {
  const v1::StepRules& rules = program.rules();
  double longest = 0;
  for (const v1::Sequence& sequence : program.sequences()) {
    if (!IsTrain(sequence.name())) continue;
    const double flops = FlopsOf(sequence);
    if (sequence.name() == kTrain) longest = flops;
    by_length_[LengthOf(rules, sequence)] = {.name = sequence.name(), .flops = flops};
  }
  for (auto& [length, sequence] : by_length_) {
    sequence.flops = longest > 0 ? rules.flops_per_step() * (sequence.flops / longest) : 0;
  }
}

}  // namespace terrace
