// SPDX-License-Identifier: Apache-2.0
#include "proto/check/weights.h"

#include <algorithm>
#include <tuple>

#include "base/status_macros.h"
#include "kernels/op.h"
#include "kernels/tensor_view.h"
#include "proto/check/refuse.h"
#include "proto/check/state.h"

namespace terrace::check {
namespace {

using kernels::Op;

// Operands of kAdamw in kernels/op.h.
constexpr int kParam = 1, kMoment1 = 2, kMoment2 = 3;

int64_t ElementBytes(const v1::StateRange& range) {
  return kernels::SizeOf(static_cast<kernels::DType>(range.dtype()));
}

Rows RowsOf(const Access& access) {
  return {access.offset, access.rows, access.row_bytes, access.stride_bytes};
}

bool Meets(const ByteSet& set, const Access& access) {
  for (int64_t r = 0; r < access.rows; ++r) {
    const int64_t begin = access.offset + r * access.stride_bytes;
    if (set.Meets({begin, begin + access.row_bytes})) return true;
  }
  return false;
}

// May derive, in "train", what "restore" derives from the weights.
bool Renews(const CheckedInstruction& checked, const v1::Instruction& instruction) {
  if (checked.op.has_value()) return checked.op->op == Op::kCast;
  return instruction.kind_case() == v1::Instruction::kCollective &&
         instruction.collective().kind() == v1::ALL_GATHER;
}

}  // namespace

StateIndex::StateIndex(const v1::Program& program)
    : filled_(program.buffers_size()), by_buffer_(program.buffers_size()) {
  for (const v1::StateRange& range : program.state()) {
    filled_[range.buffer()].Add(FilledBytes(range));
    const Rows rows = RowsIn(range);
    const int64_t end = rows.offset + (rows.rows - 1) * rows.stride_bytes + rows.row_bytes;
    by_buffer_[range.buffer()].push_back({.begin = rows.offset, .end = end, .range = &range});
  }
  for (std::vector<Entry>& entries : by_buffer_) {
    std::sort(entries.begin(), entries.end(),
              [](const Entry& a, const Entry& b) { return a.begin < b.begin; });
    int64_t end_max = 0;
    for (Entry& entry : entries) entry.end_max = end_max = std::max(end_max, entry.end);
  }
}

int64_t StateIndex::shard_elements(uint32_t buffer) const {
  const std::vector<Entry>& entries = by_buffer_[buffer];
  return entries.empty() ? 0 : entries[0].range->shard_elements();
}

void StateIndex::ForEach(uint32_t buffer, int64_t begin, int64_t end,
                         const std::function<void(const v1::StateRange&)>& visit) const {
  const std::vector<Entry>& entries = by_buffer_[buffer];
  auto entry = std::partition_point(entries.begin(), entries.end(),
                                    [&](const Entry& e) { return e.begin < end; });
  while (entry != entries.begin() && std::prev(entry)->end_max > begin) {
    --entry;
    if (entry->end > begin) visit(*entry->range);
  }
}

bool SamePlaces(const v1::StateRange& a, const v1::StateRange& b) {
  const auto places = [](const v1::StateRange& r) {
    return std::tuple(r.row(), r.rows(), r.column(), r.columns(), r.split(),
                      std::max(1u, r.split_block()), r.rows() > 1 ? r.row_stride() : 0,
                      r.shard_elements());
  };
  return a.tensor() == b.tensor() && places(a) == places(b);
}

bool StateIndex::SameRegion(uint32_t weights, uint32_t moments, v1::StateKind kind) const {
  const auto [known, is_new] = same_.emplace(std::pair(weights, moments), false);
  if (is_new) {
    const std::vector<Entry>& a = by_buffer_[weights];
    const std::vector<Entry>& b = by_buffer_[moments];
    known->second =
        std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](const Entry& x, const Entry& y) {
          return y.range->kind() == kind && SamePlaces(*x.range, *y.range) &&
                 x.begin / ElementBytes(*x.range) == y.begin / ElementBytes(*y.range);
        });
  }
  return known->second;
}

absl::Status CheckPersistentWrites(const v1::Program& program, const StateIndex& state,
                                   const CheckedSequence& sequence) {
  const std::string& name = sequence.sequence->name();
  std::vector<bool> fixed(program.buffers_size(), false);
  for (const v1::RopeTable& table : program.rope_tables()) fixed[table.buffer()] = true;
  for (int i = 0; i < static_cast<int>(sequence.instructions.size()); ++i) {
    const CheckedInstruction& checked = sequence.instructions[i];
    const v1::Instruction& instruction = sequence.sequence->instructions(i);
    const bool optimizer =
        name == "train" && checked.op.has_value() && checked.op->op == Op::kAdamw;
    for (const Access& access : checked.accesses) {
      if (!access.writes || program.buffers(access.buffer).lifetime() != v1::PERSISTENT) continue;
      const std::string what = absl::StrCat(Where(*sequence.sequence, instruction), ": writes ");
      const std::string buffer = BufferText(program, access.buffer);
      if (Meets(state.bytes(access.buffer), access)) {
        if (optimizer) continue;
        return Refuse(what, "the state in ", buffer, ", which only the optimizer of 'train' may");
      }
      if (optimizer) return Refuse(what, buffer, ", which holds no weights");
      const bool derives = name == "restore" || (name == "train" && Renews(checked, instruction));
      if (!fixed[access.buffer] && derives) continue;
      return Refuse(what, "the persistent ", buffer,
                    ", which only 'restore' and, in 'train', ALL_GATHER or cast may");
    }
  }
  return absl::OkStatus();
}

Updates::Updates(const v1::Program& program, const StateIndex& state)
    : program_(program), state_(state), updated_(program.buffers_size()) {}

absl::Status Updates::CheckMoment(const Access& param, const Access& moment, v1::StateKind kind,
                                  const std::string& where) const {
  const auto refuse = [&](const v1::StateRange& weight) {
    return Refuse(where, ": operand ", moment.operand, " at byte ", moment.offset, " of ",
                  BufferText(program_, moment.buffer), " is not the ", v1::StateKind_Name(kind),
                  " of '", weight.tensor(), "'");
  };
  absl::Status status;
  if (state_.shard_elements(param.buffer) > 0) {
    // All four operands are f32: equal bytes are equal elements.
    if (param.offset == moment.offset && state_.SameRegion(param.buffer, moment.buffer, kind))
      return status;
    state_.ForEach(param.buffer, 0, INT64_MAX,
                   [&](const v1::StateRange& weight) { status = refuse(weight); });
    return status;
  }
  state_.ForEach(param.buffer, param.offset, param.end(), [&](const v1::StateRange& weight) {
    const int64_t place = moment.offset + (weight.offset() - param.offset);
    bool found = false;
    state_.ForEach(moment.buffer, moment.offset, moment.end(), [&](const v1::StateRange& range) {
      found =
          found || (range.kind() == kind && range.offset() == place && SamePlaces(range, weight));
    });
    if (!found && status.ok()) status = refuse(weight);
  });
  return status;
}

absl::Status Updates::Add(const CheckedInstruction& instruction, const std::string& where) {
  const Access& param = *instruction.Find(kParam);
  for (int operand : {0, kParam, kMoment1, kMoment2}) {
    if (instruction.Find(operand)->rows > 1)
      return Refuse(where, ": operand ", operand, " must be dense");
  }
  const int64_t missing = state_.bytes(param.buffer).FirstMissing(RowsOf(param));
  absl::Status status;
  const auto not_weight = [&](int64_t byte) {
    return Refuse(where, ": byte ", byte, " of ", BufferText(program_, param.buffer),
                  " is no weight");
  };
  if (missing >= 0) return not_weight(missing);
  const bool sharded = state_.shard_elements(param.buffer) > 0;
  state_.ForEach(param.buffer, sharded ? 0 : param.offset, sharded ? INT64_MAX : param.end(),
                 [&](const v1::StateRange& range) {
                   if (range.kind() != v1::WEIGHT) status = not_weight(range.offset());
                 });
  RETURN_IF_ERROR(status);
  const ByteRange bytes = {param.offset, param.end()};
  updated_[param.buffer].ForEach(bytes, [&](const ByteRange& piece, int value) {
    if (value == ByteMap::kNone || !status.ok()) return;
    status = Refuse(where, ": updates byte ", piece.begin, " of ",
                    BufferText(program_, param.buffer), " a second time");
  });
  RETURN_IF_ERROR(status);
  updated_[param.buffer].Set(bytes, 1);
  RETURN_IF_ERROR(CheckMoment(param, *instruction.Find(kMoment1), v1::ADAM_M, where));
  return CheckMoment(param, *instruction.Find(kMoment2), v1::ADAM_V, where);
}

absl::Status Updates::CheckComplete() const {
  for (const v1::StateRange& range : program_.state()) {
    if (range.kind() != v1::WEIGHT) continue;
    absl::Status status;
    const Rows rows = FilledBytes(range);
    for (int64_t r = 0; r < rows.rows && status.ok(); ++r) {
      const int64_t begin = rows.offset + r * rows.stride_bytes;
      updated_[range.buffer()].ForEach({begin, begin + rows.row_bytes}, [&](const ByteRange& piece,
                                                                            int value) {
        if (value != ByteMap::kNone || !status.ok()) return;
        status = Refuse("'train': byte ", piece.begin, " of ", BufferText(program_, range.buffer()),
                        ", weight '", range.tensor(), "', is updated by no optimizer op");
      });
    }
    RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

}  // namespace terrace::check
