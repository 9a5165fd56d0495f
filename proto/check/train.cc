// SPDX-License-Identifier: Apache-2.0
#include "proto/check/train.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "kernels/op.h"
#include "kernels/tensor_view.h"
#include "proto/check/ranges.h"
#include "proto/check/refuse.h"
#include "proto/check/state.h"
#include "proto/check/structure.h"

namespace terrace::check {
namespace {

using kernels::Op;

constexpr char kDataParallel[] = "data";

// Operands of kAdamw in kernels/op.h.
constexpr int kGrad = 0, kParam = 1, kMoment1 = 2, kMoment2 = 3;

bool IsOp(const CheckedInstruction& instruction, Op op) {
  return instruction.op.has_value() && instruction.op->op == op;
}

std::string WhereIs(const CheckedSequence& sequence, int i) {
  return Where(*sequence.sequence, sequence.sequence->instructions(i));
}

// The state manifest, by address.
class StateIndex {
 public:
  explicit StateIndex(const v1::Program& program)
      : program_(program), by_byte_(program.buffers_size()) {
    for (int i = 0; i < program.state_size(); ++i) {
      const Rows rows = FilledBytes(program.state(i));
      for (int64_t r = 0; r < rows.rows; ++r) {
        const int64_t begin = rows.offset + r * rows.stride_bytes;
        by_byte_[program.state(i).buffer()].Set({begin, begin + rows.row_bytes}, i);
      }
    }
  }

  // Null when byte `offset` of the buffer is no state.
  const v1::StateRange* At(uint32_t buffer, int64_t offset) const {
    int found = ByteMap::kNone;
    by_byte_[buffer].ForEach({offset, offset + 1}, [&](const ByteRange&, int i) { found = i; });
    return found == ByteMap::kNone ? nullptr : &program_.state(found);
  }
  const ByteMap& bytes(uint32_t buffer) const { return by_byte_[buffer]; }

 private:
  const v1::Program& program_;
  std::vector<ByteMap> by_byte_;  // index in Program.state
};

std::vector<ByteRange> RangesOf(const Access& access) {
  std::vector<ByteRange> ranges;
  for (int64_t r = 0; r < access.rows; ++r) {
    const int64_t begin = access.offset + r * access.stride_bytes;
    ranges.push_back({begin, begin + access.row_bytes});
  }
  return ranges;
}

// ---- micro-batches
// -------------------------------------------------------------------------------------------------

absl::Status CheckMicroBatches(const v1::Program& program, const CheckedSequence& train) {
  const v1::StepRules& rules = program.rules();
  if (rules.micro_batches() < 1 ||
      rules.micro_batches() > static_cast<uint32_t>(train.instructions.size())) {
    return Refuse("rules.micro_batches: got ", rules.micro_batches(),
                  ", must be 1 or more, each with its LOAD_BATCH");
  }
  if (rules.micro_batch() < 1 || rules.sequence_length() < 1 ||
      rules.sequence_length() > kBytesMax / rules.micro_batch()) {
    return Refuse("rules: micro_batch ", rules.micro_batch(), " of sequence_length ",
                  rules.sequence_length(), " is no number of tokens");
  }
  const int64_t tokens = int64_t{rules.micro_batch()} * rules.sequence_length();
  std::vector<bool> loaded(rules.micro_batches(), false);
  for (int i = 0; i < static_cast<int>(train.instructions.size()); ++i) {
    const v1::Instruction& instruction = train.sequence->instructions(i);
    const bool load = instruction.kind_case() == v1::Instruction::kInput &&
                      instruction.input().kind() == v1::LOAD_BATCH;
    if (instruction.micro_batch() >= static_cast<int64_t>(rules.micro_batches()) ||
        (load && instruction.micro_batch() < 0)) {
      return Refuse(WhereIs(train, i), ": micro-batch ", instruction.micro_batch(), " of ",
                    rules.micro_batches(), " does not exist");
    }
    if (!load) continue;
    if (loaded[instruction.micro_batch()]) {
      return Refuse(WhereIs(train, i), ": loads micro-batch ", instruction.micro_batch(),
                    " a second time");
    }
    loaded[instruction.micro_batch()] = true;
    for (const v1::Operand& operand : instruction.operands()) {
      if (operand.access() == v1::ACCESS_UNSPECIFIED || operand.shape(0) == tokens) continue;
      return Refuse(WhereIs(train, i), ": loads ", operand.shape(0),
                    " tokens, a micro-batch has ", tokens);
    }
  }
  const auto missing = std::find(loaded.begin(), loaded.end(), false);
  if (missing == loaded.end()) return absl::OkStatus();
  return Refuse("'train': micro-batch ", missing - loaded.begin(), " of ", rules.micro_batches(),
                " is never loaded");
}

// ---- reduction
// -------------------------------------------------------------------------------------------------

// Index of the group over which data-parallel ranks sum; -1 when every rank sees all data.
absl::StatusOr<int> DataParallelGroup(const v1::Program& program) {
  const uint32_t ranks = program.rules().data_parallel();
  if (ranks < 1) return Refuse("rules.data_parallel: got 0, must be at least 1");
  if (ranks == 1) return -1;
  for (int g = 0; g < program.groups_size(); ++g) {
    if (program.groups(g).name() == kDataParallel) return g;
  }
  return Refuse("rules.data_parallel is ", ranks, " and there is no group 'data'");
}

// Follows every byte of a step through contributions and sums over the data-parallel ranks.
class Reductions {
 public:
  Reductions(const v1::Program& program, const CheckedSequence& train, int group)
      : program_(program), train_(train), group_(group), sums_(program.buffers_size()) {}

  // Instruction i: what it needs summed is summed, then what it writes counts as a contribution or
  // a sum.
  absl::Status Step(int i) {
    const CheckedInstruction& instruction = train_.instructions[i];
    if (IsOp(instruction, Op::kAdamw)) RETURN_IF_ERROR(CheckSummed(i, *instruction.Find(kGrad), 1));
    if (IsOp(instruction, Op::kSquaredNorm))
      RETURN_IF_ERROR(CheckSummed(i, *instruction.Find(0), 1));
    if (IsOp(instruction, Op::kGradScale)) {
      RETURN_IF_ERROR(CheckSummed(i, *instruction.Find(0), 0));
      RETURN_IF_ERROR(CheckSummed(i, *instruction.Find(1), 1));
    }
    const v1::Instruction& source = train_.sequence->instructions(i);
    const bool sum = source.kind_case() == v1::Instruction::kCollective &&
                     source.collective().kind() == v1::ALL_REDUCE &&
                     static_cast<int>(source.collective().group()) == group_;
    for (const Access& access : instruction.accesses) {
      if (!access.writes || access.operand == kWorkspaceOperand) continue;
      RETURN_IF_ERROR(sum ? Sum(i, access) : Contribute(i, access));
    }
    return absl::OkStatus();
  }

 private:
  // How often the byte was summed since it was last written; kNone counts as never.
  static int Times(int value) { return std::max(value, 0); }

  absl::Status CheckSummed(int i, const Access& access, int times) {
    if (group_ < 0) return absl::OkStatus();
    absl::Status status;
    for (const ByteRange& range : RangesOf(access)) {
      sums_[access.buffer].ForEach(range, [&](const ByteRange& piece, int value) {
        if (Times(value) == times || !status.ok()) return;
        status = Refuse(WhereIs(train_, i), ": reads byte ", piece.begin, " of ",
                        BufferText(program_, access.buffer), " which was reduced ", Times(value),
                        " times over 'data', must be ", times);
      });
    }
    return status;
  }

  absl::Status Sum(int i, const Access& access) {
    absl::Status status;
    for (const ByteRange& range : RangesOf(access)) {
      sums_[access.buffer].ForEach(range, [&](const ByteRange& piece, int value) {
        if (Times(value) == 0 || !status.ok()) return;
        status = Refuse(WhereIs(train_, i), ": reduces byte ", piece.begin, " of ",
                        BufferText(program_, access.buffer), " a second time");
      });
      sums_[access.buffer].Set(range, 1);
    }
    return status;
  }

  absl::Status Contribute(int i, const Access& access) {
    if (sums_[access.buffer].empty()) return absl::OkStatus();
    absl::Status status;
    for (const ByteRange& range : RangesOf(access)) {
      if (access.reads) {
        sums_[access.buffer].ForEach(range, [&](const ByteRange& piece, int value) {
          if (Times(value) == 0 || !status.ok()) return;
          status = Refuse(WhereIs(train_, i), ": adds to byte ", piece.begin, " of ",
                          BufferText(program_, access.buffer),
                          " after it was reduced over 'data'");
        });
      }
      sums_[access.buffer].Set(range, 0);
    }
    return status;
  }

  const v1::Program& program_;
  const CheckedSequence& train_;
  const int group_;
  std::vector<ByteMap> sums_;  // by buffer
};

// ---- the optimizer
// -------------------------------------------------------------------------------------------------

// Two ranges hold the same elements at equal distances from their offsets.
bool SamePlaces(const v1::StateRange& a, const v1::StateRange& b) {
  const auto places = [](const v1::StateRange& r) {
    return std::tuple(r.row(), r.rows(), r.column(), r.columns(), r.split(), r.split_block(),
                      r.row_stride(), r.shard_elements());
  };
  return a.tensor() == b.tensor() && places(a) == places(b);
}

// That operand `operand` of the optimizer holds at `byte` the state of `kind` of the element that
// the weight holds `distance` bytes after its offset.
absl::Status CheckMoment(const v1::Program& program, const StateIndex& state,
                         const v1::StateRange& weight, int64_t distance, const Access& access,
                         int64_t byte, v1::StateKind kind, const std::string& where) {
  const v1::StateRange* range = state.At(access.buffer, byte);
  if (range != nullptr && range->kind() == kind && SamePlaces(*range, weight) &&
      byte - range->offset() == distance)
    return absl::OkStatus();
  return Refuse(where, ": operand ", access.operand, " at byte ", byte, " of ",
                BufferText(program, access.buffer), " is not the ", v1::StateKind_Name(kind),
                " of '", weight.tensor(), "'");
}

// One optimizer op: each weight it updates goes with its own moments, and no element was updated
// before.
absl::Status CheckUpdate(const v1::Program& program, const StateIndex& state,
                         const CheckedInstruction& instruction, const std::string& where,
                         std::vector<ByteMap>* updated) {
  const Access& param = *instruction.Find(kParam);
  const ByteRange bytes = {param.offset, param.end()};
  absl::Status status;
  (*updated)[param.buffer].ForEach(bytes, [&](const ByteRange& piece, int value) {
    if (value != ByteMap::kNone && status.ok()) {
      status = Refuse(where, ": updates byte ", piece.begin, " of ",
                      BufferText(program, param.buffer), " a second time");
    }
  });
  RETURN_IF_ERROR(status);
  (*updated)[param.buffer].Set(bytes, 1);
  state.bytes(param.buffer).ForEach(bytes, [&](const ByteRange& piece, int index) {
    if (!status.ok()) return;
    if (index == ByteMap::kNone || program.state(index).kind() != v1::WEIGHT) {
      status = Refuse(where, ": byte ", piece.begin, " of ", BufferText(program, param.buffer),
                      " is no weight");
      return;
    }
    const v1::StateRange& weight = program.state(index);
    const int64_t inside = piece.begin - weight.offset();
    // All four operands are f32, so that equal distances in bytes are equal distances in elements.
    const int64_t distance = piece.begin - param.offset;
    for (const auto& [operand, kind] :
         {std::pair(kMoment1, v1::ADAM_M), std::pair(kMoment2, v1::ADAM_V)}) {
      const Access& moment = *instruction.Find(operand);
      if (status.ok()) {
        status = CheckMoment(program, state, weight, inside, moment, moment.offset + distance, kind,
                             where);
      }
    }
  });
  return status;
}

absl::Status CheckAllUpdated(const v1::Program& program, const std::vector<ByteMap>& updated) {
  for (const v1::StateRange& range : program.state()) {
    if (range.kind() != v1::WEIGHT) continue;
    absl::Status status;
    const Rows rows = FilledBytes(range);
    for (int64_t r = 0; r < rows.rows && status.ok(); ++r) {
      const int64_t begin = rows.offset + r * rows.stride_bytes;
      updated[range.buffer()].ForEach(
          {begin, begin + rows.row_bytes}, [&](const ByteRange& piece, int value) {
            if (value != ByteMap::kNone || !status.ok()) return;
            status = Refuse("'train': byte ", piece.begin, " of ",
                            BufferText(program, range.buffer()), ", weight '", range.tensor(),
                            "', is updated by no optimizer op");
          });
    }
    RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckWeightWrites(const v1::Program& program, const CheckedSequence& sequence) {
  const StateIndex state(program);
  const bool train = sequence.sequence->name() == "train";
  for (int i = 0; i < static_cast<int>(sequence.instructions.size()); ++i) {
    const CheckedInstruction& instruction = sequence.instructions[i];
    if (train && IsOp(instruction, Op::kAdamw)) continue;
    for (const Access& access : instruction.accesses) {
      if (!access.writes || program.buffers(access.buffer).lifetime() != v1::PERSISTENT) continue;
      int touched = ByteMap::kNone;
      for (const ByteRange& range : RangesOf(access)) {
        state.bytes(access.buffer).ForEach(range, [&](const ByteRange&, int i) {
          touched = std::max(touched, i);
        });
      }
      if (touched != ByteMap::kNone) {
        return Refuse(WhereIs(sequence, i), ": writes the state of '",
                      program.state(touched).tensor(), "' in ", BufferText(program, access.buffer),
                      ", which only the optimizer of 'train' may");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTraining(const v1::Program& program, const CheckedSequence& train) {
  RETURN_IF_ERROR(CheckMicroBatches(program, train));
  ASSIGN_OR_RETURN(const int group, DataParallelGroup(program));
  const StateIndex state(program);
  Reductions reductions(program, train, group);
  std::vector<ByteMap> updated(program.buffers_size());
  for (int i = 0; i < static_cast<int>(train.instructions.size()); ++i) {
    RETURN_IF_ERROR(reductions.Step(i));
    if (IsOp(train.instructions[i], Op::kAdamw)) {
      RETURN_IF_ERROR(
          CheckUpdate(program, state, train.instructions[i], WhereIs(train, i), &updated));
    }
  }
  return CheckAllUpdated(program, updated);
}

}  // namespace terrace::check
