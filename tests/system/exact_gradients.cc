// SPDX-License-Identifier: Apache-2.0
#include "tests/system/exact_gradients.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "proto/program/allocation_events.h"
#include "proto/program/state_layout.h"
#include "tests/conformance/op_reference.h"
#include "tests/system/rank_state.h"
#include "tests/system/turns.h"
#include "worker/rank/program_memory.h"
#include "worker/train/initial_state.h"
#include "worker/vm/vm.h"

namespace terrace {
namespace {

using kernels::DType;
using kernels::Op;
using kernels::TensorView;
using kernels::conformance::Values;

// An arena, and the doubles that its floats were rounded from. A float that is no longer the one
// that was rounded to was put there by something else than an operation, and counts as it is.
class DoubleMemory {
 public:
  explicit DoubleMemory(std::span<std::byte> arena)
      : arena_(reinterpret_cast<float*>(arena.data())),
        exact_(arena.size() / sizeof(float), std::numeric_limits<double>::quiet_NaN()) {}

  Values Read(const TensorView& view) const {
    Values values;
    ForEach(view, [&](size_t at) {
      if (view.dtype == DType::kI32) {
        int32_t value = 0;
        std::memcpy(&value, arena_ + at, sizeof(value));
        values.push_back(value);
      } else {
        values.push_back(Element(at));
      }
    });
    return values;
  }

  void Write(const TensorView& view, const Values& values) {
    size_t i = 0;
    ForEach(view, [&](size_t at) {
      exact_[at] = values[i++];
      arena_[at] = static_cast<float>(exact_[at]);
    });
  }

 private:
  double Element(size_t at) const {
    const auto rounded = static_cast<float>(exact_[at]);
    return std::memcmp(&rounded, arena_ + at, sizeof(rounded)) == 0 ? exact_[at] : arena_[at];
  }

  // Calls f with the index in the arena of every element.
  template <typename F>
  void ForEach(const TensorView& view, F f) const {
    const auto first = static_cast<size_t>(view.as<float>() - arena_);
    for (int64_t row = 0; row < view.rows(); ++row) {
      for (int64_t i = 0; i < view.RowElements(); ++i) f(first + row * view.row_stride + i);
    }
  }

  float* const arena_;
  std::vector<double> exact_;
};

// Gives the rows of the first step, computes, and keeps the gradients instead of using them.
class ExactIo final : public SequenceIo {
 public:
  ExactIo(TrainIo* rows, DoubleMemory* memory) : rows_(rows), memory_(memory) {}

  absl::Status Compute(const PreparedInstruction& instruction) {
    Op op = Op::kFill;
    if (!kernels::ParseOp(instruction.source->compute().op(), &op))
      return absl::InternalError(absl::StrCat("no op: ", instruction.source->text()));
    const std::span<const TensorView> views = instruction.operands;
    if (op == Op::kUpdate) {
      gradients_[views[1].as<std::byte>()] = memory_->Read(views[0]);
      return absl::OkStatus();
    }
    std::vector<Values> operands(views.size());
    for (size_t i = 0; i < views.size(); ++i) {
      const kernels::Access access = AccessOf(op, instruction, i);
      if (access == kernels::Access::kRead || access == kernels::Access::kUpdate)
        operands[i] = memory_->Read(views[i]);
    }
    const std::vector<kernels::TensorShape> shapes(views.begin(), views.end());
    kernels::conformance::RunReference(op, instruction.attrs, shapes, operands);
    for (size_t i = 0; i < views.size(); ++i) {
      const kernels::Access access = AccessOf(op, instruction, i);
      if (access == kernels::Access::kWrite || access == kernels::Access::kUpdate)
        memory_->Write(views[i], operands[i]);
    }
    return absl::OkStatus();
  }

  // By where the weights lie that they are to update.
  const std::map<const std::byte*, Values>& gradients() const { return gradients_; }

  void LoadBatch(int micro_batch, const BatchTarget& batch) override {
    rows_->LoadBatch(micro_batch, batch);
  }
  void LoadSchedule(std::span<float, 4> schedule) override { rows_->LoadSchedule(schedule); }
  void Output(v1::OutputKind, std::span<const float>) override {}

 private:
  static kernels::Access AccessOf(Op op, const PreparedInstruction& instruction, size_t i) {
    if (instruction.operands[i].absent()) return kernels::Access::kNone;
    return OperandAccess(op, instruction.attrs, static_cast<int>(i));
  }

  TrainIo* const rows_;
  DoubleMemory* const memory_;
  std::map<const std::byte*, Values> gradients_;
};

absl::Status RunExactly(const PreparedInstruction& instruction, SequenceIo* io) {
  return static_cast<ExactIo*>(io)->Compute(instruction);
}

bool IsKnownType(const TensorView& view) {
  return view.absent() || view.dtype == DType::kF32 || view.dtype == DType::kI32;
}

// The same instructions; those that compute do so in double.
absl::StatusOr<PreparedSequence> InDouble(const PreparedSequence& prepared) {
  PreparedSequence exact = prepared;
  for (PreparedStream& stream : exact.streams) {
    for (PreparedInstruction& instruction : stream.instructions) {
      const v1::Instruction& source = *instruction.source;
      bool known = source.has_compute() || source.has_input() || source.has_output();
      for (const TensorView& view : instruction.operands) known = known && IsKnownType(view);
      if (!known) return absl::UnimplementedError(absl::StrCat("not in double: ", source.text()));
      if (source.has_compute()) instruction.run = RunExactly;
    }
  }
  return exact;
}

absl::StatusOr<ExactTensors> ByTensor(const JobData& data, const Rank& rank, const ExactIo& io) {
  const auto tokens = static_cast<double>(CountedTargets(data, rank.program.rules()));
  ExactTensors tensors;
  for (const Tensor& tensor : data.model.tensors) {
    tensors[tensor.name].assign(tensor.elements(), std::numeric_limits<double>::quiet_NaN());
  }
  for (const v1::StateRange& range : rank.program.state()) {
    if (range.kind() != v1::WEIGHT) continue;
    const v1::Buffer& buffer = rank.program.buffers(static_cast<int>(range.buffer()));
    for (const StateRun& run : RunsOf(range, rank.program.grid(), rank.coordinates)) {
      const std::byte* weights = rank.regions[0]->data() + buffer.offset() + run.offset;
      // The update of the last weights that begin at these or before them.
      auto updated = io.gradients().upper_bound(weights);
      if (updated == io.gradients().begin()) return absl::InternalError("nothing is updated");
      --updated;
      const size_t first = (weights - updated->first) / sizeof(float);
      if (first + run.elements > updated->second.size())
        return absl::InternalError(absl::StrCat(range.tensor(), " is not updated at once"));
      for (int64_t i = 0; i < run.elements; ++i)
        tensors.at(range.tensor())[run.begin + i] = updated->second[first + i] / tokens;
    }
  }
  return tensors;
}

}  // namespace

absl::StatusOr<ExactTensors> ExactGradients(const JobData& data, const v1::Program& program) {
  if (program.ranks() != 1 || program.arenas_size() != 1 || UsesCaching(program))
    return absl::UnimplementedError("in double only planned programs of one rank and tier run");
  ASSIGN_OR_RETURN(const ProgramMemory memory,
                   ProgramMemory::Reserve(program, MemoryOptions{.limits = {}}));
  const std::vector<std::unique_ptr<Communicator>> nobody(program.groups_size());
  const SystemClock clock;
  ASSIGN_OR_RETURN(
      const std::unique_ptr<Vm> vm,
      Vm::Create(program, {.arenas = memory.arenas(), .groups = nobody}, &clock, nullptr));
  const Rank rank = {program, CoordinatesOf(program.grid(), 0), memory.regions()};
  const std::span arena(memory.arenas()[0], static_cast<size_t>(program.arenas(0).bytes()));
  std::memset(arena.data(), 0xff, arena.size());
  RETURN_IF_ERROR(FillInitialState(program, memory.regions(), 1));
  RETURN_IF_ERROR(LoadWeights(rank, data.weights));

  const FixedDataset dataset(data);
  TrainIo rows = TrainIoOf(rank, dataset);
  rows.SetStep(0);
  DoubleMemory doubles(arena);
  ExactIo io(&rows, &doubles);
  ASSIGN_OR_RETURN(const PreparedSequence train, InDouble(*vm->Find("train")));
  std::mt19937 random(0);
  RETURN_IF_ERROR(RunInTurns({{.sequence = &train, .io = &io}}, &random));
  return ByTensor(data, rank, io);
}

}  // namespace terrace
