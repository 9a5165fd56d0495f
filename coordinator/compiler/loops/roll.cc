// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/loops/roll.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "coordinator/compiler/loops/roll_values.h"
#include "coordinator/compiler/tiers/staging.h"
#include "coordinator/layout/rules.h"
#include "proto/program/operands.h"
#include "proto/program/sequences.h"

namespace terrace::compiler {
namespace {

// A list that is alike in fewer iterations may be so by chance.
constexpr int kLeastIterations = 3;

// What an instruction does, without the values it touches, its waits and its micro-batch.
std::string ShapeOf(const v1::Program& program, v1::Instruction instruction) {
  instruction.clear_id();
  instruction.clear_micro_batch();
  instruction.clear_waits();
  ForEachMutableOperand(&instruction, [&](v1::Operand* operand) {
    const v1::Buffer& buffer = program.buffers(static_cast<int>(operand->buffer()));
    if (buffer.lifetime() == v1::PERSISTENT) return;
    operand->set_buffer(0);
    operand->set_offset(0);
  });
  return instruction.SerializeAsString();
}

class Roller {
 public:
  Roller(const v1::Program& program, const v1::Sequence& sequence, const RollShape& shape)
      : program_(program), sequence_(sequence), shape_(shape) {}

  absl::StatusOr<RolledSequence> Run() {
    for (const v1::Instruction& instruction : sequence_.instructions())
      shapes_.push_back(ShapeOf(program_, instruction));
    RETURN_IF_ERROR(FindIterations());
    FindPositions();
    // The first iterations may wait for instructions of the prologue: then they belong to it.
    while (at_.count >= kLeastIterations && !AllWaitAlike()) {
      at_.first += at_.length;
      --at_.count;
    }
    if (at_.count < kLeastIterations)
      return DoesNotRepeat(sequence_, nullptr, "its iterations wait for different instructions");
    RolledSequence rolled = {.iterations = at_, .waits = std::move(waits_)};
    ASSIGN_OR_RETURN(rolled.values, FindValues(program_, sequence_, at_, shape_.micro_batches));
    return rolled;
  }

 private:
  // The first computation of each micro-batch's forward pass begins an iteration.
  absl::Status FindIterations() {
    std::map<int, int> begins;  // by micro-batch
    for (int i = 0; i < sequence_.instructions_size(); ++i) {
      const v1::Instruction& instruction = sequence_.instructions(i);
      const bool computes =
          program_.streams(static_cast<int>(instruction.stream())).kind() == v1::COMPUTE;
      if (instruction.phase() == v1::FORWARD && instruction.micro_batch() >= 0 && computes)
        begins.emplace(instruction.micro_batch(), i);
    }
    const auto middle = static_cast<int>(shape_.micro_batches / 2);
    const int next = middle + static_cast<int>(shape_.an_iteration);
    if (!begins.contains(middle) || !begins.contains(next))
      return DoesNotRepeat(sequence_, nullptr, "it has too few micro-batches");
    at_.length = begins[next] - begins[middle];
    if (at_.length < 1)
      return DoesNotRepeat(sequence_, nullptr, "its micro-batches are not in order");
    int low = begins[middle], high = low;
    while (low > 0 && SameShape(low - 1)) --low;
    while (high < sequence_.instructions_size() - at_.length && SameShape(high)) ++high;
    high += at_.length;
    at_.first = begins[middle];
    while (at_.first - at_.length >= low) at_.first -= at_.length;
    at_.count = (high - at_.first) / at_.length;
    if (at_.count >= kLeastIterations) return absl::OkStatus();
    return DoesNotRepeat(sequence_, nullptr, "its micro-batches are not alike");
  }

  // An instruction and that of the next iteration.
  bool SameShape(int i) const {
    if (i + at_.length >= sequence_.instructions_size()) return false;
    const int one = sequence_.instructions(i).micro_batch();
    const int next = sequence_.instructions(i + at_.length).micro_batch();
    return shapes_[i] == shapes_[i + at_.length] &&
           next == (one < 0 ? one : one + shape_.an_iteration);
  }

  void FindPositions() {
    streams_.resize(program_.streams_size());
    for (int i = 0; i < sequence_.instructions_size(); ++i) {
      std::vector<int>& stream = streams_[sequence_.instructions(i).stream()];
      positions_.push_back(static_cast<int>(stream.size()));
      stream.push_back(i);
    }
  }

  // Takes the waits of the last iteration for those of the loop. False when some other iteration
  // waits for something else.
  bool AllWaitAlike() {
    waits_.clear();
    for (int k = 0; k < at_.length; ++k) {
      std::optional<std::vector<RolledWait>> waits = WaitsInLoop(k);
      if (!waits.has_value()) return false;
      for (int iteration = 0; iteration < at_.count; ++iteration) {
        if (WaitsIn(*waits, iteration) != WaitsOf(at_.begin(iteration) + k)) return false;
      }
      waits_.push_back(*std::move(waits));
    }
    return true;
  }

  std::set<int> WaitsOf(int i) const {
    const auto& waits = sequence_.instructions(i).waits();
    return {waits.begin(), waits.end()};
  }

  // The waits of instruction k of the body. None when it waits for one that stands before the loop.
  std::optional<std::vector<RolledWait>> WaitsInLoop(int k) const {
    std::vector<RolledWait> waits;
    const int last = at_.count - 1;
    for (const int wait : WaitsOf(at_.begin(last) + k)) {
      if (wait < at_.first) return std::nullopt;
      const int iteration = (wait - at_.first) / at_.length;
      waits.push_back({.instruction = (wait - at_.first) % at_.length, .back = last - iteration});
    }
    return waits;
  }

  // What such waits are in an iteration of this list: instructions, by their places in streams.
  std::set<int> WaitsIn(const std::vector<RolledWait>& waits, int iteration) const {
    std::set<int> in;
    for (const RolledWait& wait : waits) {
      const int i = at_.first + wait.instruction;
      const std::vector<int>& stream = streams_[sequence_.instructions(i).stream()];
      const int in_body = positions_[i + at_.length] - positions_[i];
      const int position = positions_[i] + (iteration - wait.back) * in_body;
      if (position >= 0) in.insert(stream[position]);
    }
    return in;
  }

  const v1::Program& program_;
  const v1::Sequence& sequence_;
  const RollShape shape_;
  std::vector<std::string> shapes_;  // by instruction
  Iterations at_;
  std::vector<std::vector<int>> streams_;       // instructions
  std::vector<int> positions_;                  // by instruction: in its stream
  std::vector<std::vector<RolledWait>> waits_;  // by instruction of the body
};

}  // namespace

std::vector<RollShape> RollShapes(const v1::Layout& layout) {
  std::vector<RollShape> shapes;
  for (const int64_t repeats : {1, kRingBuffers}) {
    const int64_t an_iteration = repeats * MicroBatchesAnIteration(layout);
    const int64_t shown = repeats * CompiledMicroBatches(layout);
    // The step is whole iterations longer than what is compiled of it.
    const int64_t more = std::max<int64_t>(0, layout.micro_batches() - shown) / an_iteration;
    shapes.push_back({.micro_batches = layout.micro_batches() - more * an_iteration,
                      .an_iteration = an_iteration});
  }
  return shapes;
}

absl::Status Roll(const RollShape& shape, v1::Program* program) {
  const int64_t more = int64_t{program->rules().micro_batches()} - shape.micro_batches;
  std::vector<std::optional<RolledSequence>> rolled;  // by sequence
  for (const v1::Sequence& sequence : program->sequences()) {
    rolled.emplace_back();
    if (!IsTrain(sequence.name())) continue;
    ASSIGN_OR_RETURN(rolled.back(), Roller(*program, sequence, shape).Run());
  }
  RETURN_IF_ERROR(AlignSlots(*program, &rolled));
  WriteLoops(rolled, more / shape.an_iteration, shape.an_iteration, program);
  return absl::OkStatus();
}

}  // namespace terrace::compiler
