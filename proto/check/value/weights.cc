// SPDX-License-Identifier: Apache-2.0
#include "proto/check/value/weights.h"

#include <algorithm>
#include <iterator>
#include <tuple>

#include "base/status_macros.h"
#include "base/strings.h"
#include "kernels/op.h"
#include "kernels/tensor_view.h"
#include "proto/check/instruction/refuse.h"
#include "proto/check/value/announced.h"
#include "proto/check/value/state.h"
#include "proto/program/grid.h"
#include "proto/program/moments.h"
#include "proto/program/op_codec.h"
#include "proto/program/sequences.h"
#include "proto/program/state_layout.h"

namespace terrace::check {
namespace {

using kernels::Op;

// Operands of kUpdate in kernels/op.h; moments and, of kUpdateInt8, their scales follow each other.
constexpr int kParam = 1, kMoments = 2, kScales = 6;
// Those of kUpdateFactored from kMoments on, of which some may be absent.
constexpr v1::StateKind kFactoredKinds[] = {v1::FIRST_MOMENT,  v1::SECOND_MOMENT, v1::ROW_MOMENT,
                                            v1::COLUMN_MOMENT, v1::ROW_ERROR,     v1::COLUMN_ERROR};
constexpr int kResidual = 3;  // of kEncodeBlocks

int64_t ElementBytes(const v1::StateRange& range) {
  return kernels::SizeOf(static_cast<kernels::DType>(range.dtype()));
}

bool Meets(const ByteSet& set, const Access& access) {
  for (int64_t r = 0; r < access.rows; ++r) {
    const int64_t begin = access.offset + r * access.stride_bytes;
    if (set.Meets({begin, begin + access.row_bytes})) return true;
  }
  return false;
}

// Calls `visit` for the bytes of the range's buffer that hold elements of it, on one rank or
// another: of a region its rows, each as it lies in a shard.
void ForEachHeld(const v1::StateRange& range, absl::FunctionRef<void(const ByteRange&)> visit) {
  const Rows rows = RowsIn(range);
  const int64_t shard = range.shard_elements() * ElementBytes(range);
  for (int64_t r = 0; r < rows.rows; ++r) {
    const int64_t begin = rows.offset + r * rows.stride_bytes;
    if (shard == 0) {
      visit({begin, begin + rows.row_bytes});
      continue;
    }
    if (rows.row_bytes >= shard) return visit({0, shard});
    const int64_t first = begin % shard, end = first + rows.row_bytes;
    visit({first, std::min(end, shard)});
    if (end > shard) visit({0, end - shard});
  }
}

// Null where all are.
const v1::StateRange* FirstOf(const std::vector<const v1::StateRange*>& tensors) {
  const auto there = std::find_if(tensors.begin(), tensors.end(),
                                  [](const v1::StateRange* tensor) { return tensor != nullptr; });
  return there == tensors.end() ? nullptr : *there;
}

// May derive, in "train", what "restore" derives from the weights.
bool Renews(const CheckedInstruction& checked, const v1::Instruction& instruction) {
  if (instruction.kind_case() == v1::Instruction::kCopy) return true;
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
                         absl::FunctionRef<void(const v1::StateRange&)> visit) const {
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

namespace {

// The scales of the range's moments, or codes of a frozen tensor, are at the place of their blocks:
// `block` elements become one.
bool ScalesInPlace(const v1::StateRange& moments, const v1::StateRange& scales, int64_t block) {
  const std::string name =
      scales.kind() == v1::WEIGHT ? CodeScalesName(moments.tensor()) : moments.tensor();
  const std::vector<int64_t> shape(moments.shape().begin(), moments.shape().end());
  const std::vector<int64_t> scales_shape(scales.shape().begin(), scales.shape().end());
  if (name != scales.tensor() || scales_shape != ScalesShape(shape, block) ||
      moments.offset() / ElementBytes(moments) != scales.offset() / ElementBytes(scales) * block ||
      moments.shard_elements() != scales.shard_elements() * block) {
    return false;
  }
  const int64_t columns = ColumnsOf(moments);
  if (scales_shape.size() == 2) {
    const bool rows = moments.rows() == 1 || moments.row_stride() == scales.row_stride() * block;
    return rows && moments.row() == scales.row() && moments.rows() == scales.rows() &&
           moments.column() == scales.column() * block &&
           moments.columns() == scales.columns() * block && moments.split() == scales.split() &&
           std::max(1u, moments.split_block()) == std::max(1u, scales.split_block());
  }
  // All of a tensor, without gaps.
  return moments.split() == v1::StateRange::WHOLE && moments.rows() == RowsOf(moments) &&
         moments.columns() == columns && (moments.rows() == 1 || moments.row_stride() == columns) &&
         scales.rows() == 1 && scales.column() == 0 && scales.columns() == ColumnsOf(scales) &&
         scales.split() == v1::StateRange::WHOLE;
}

}  // namespace

bool StateIndex::ScalesOf(uint32_t moments, uint32_t scales, v1::StateKind kind,
                          int64_t block) const {
  const auto [known, is_new] = scales_.emplace(std::pair(moments, scales), false);
  if (is_new) {
    const std::vector<Entry>& a = by_buffer_[moments];
    const std::vector<Entry>& b = by_buffer_[scales];
    known->second =
        std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](const Entry& x, const Entry& y) {
          return y.range->kind() == kind && ScalesInPlace(*x.range, *y.range, block);
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
        IsTrain(name) && checked.op.has_value() && kernels::IsUpdate(checked.op->op);
    for (const Access& access : checked.accesses) {
      if (!access.writes || program.buffers(access.buffer).lifetime() != v1::PERSISTENT) continue;
      const auto refuse = [&](const char* before, const char* after) {
        return Refuse(Where(*sequence.sequence, instruction), ": writes ", before,
                      BufferText(program, access.buffer), after);
      };
      if (Meets(state.bytes(access.buffer), access)) {
        // That it belongs there is asked where content is known.
        const bool write_back = IsTrain(name) && instruction.kind_case() == v1::Instruction::kCopy;
        const bool keeps = IsTrain(name) && checked.op.has_value() &&
                           checked.op->op == Op::kEncodeBlocks && access.operand == kResidual;
        if (optimizer || write_back || keeps) continue;
        return refuse("the state in ", ", which only the optimizer of 'train' may");
      }
      if (optimizer) return refuse("", ", which holds no weights");
      // That only attention_cached does, and never in 'train', CheckInstructions has asked.
      const bool keeps = program.buffers(access.buffer).class_() == v1::KEY_VALUE_CACHE;
      const bool derives =
          name == "restore" || keeps || (IsTrain(name) && Renews(checked, instruction));
      if (!fixed[access.buffer] && derives) continue;
      return refuse("the persistent ",
                    ", which only 'restore' and, in 'train', ALL_GATHER, cast or a copy may");
    }
  }
  return absl::OkStatus();
}

std::vector<Held> HeldState(const Flow& flow, const CheckedSequence& sequence, int i, int operand) {
  const Access& access = *sequence.instructions[i].Find(operand);
  const int64_t element_bytes = kernels::SizeOf(
      static_cast<kernels::DType>(sequence.sequence->instructions(i).operands(operand).dtype()));
  std::vector<Held> held;
  flow.ForEach(access, [&](const ByteRange& bytes, const Value& value) {
    if (value.role != Value::kState || value.rounded || value.updated || value.spoiled_by >= 0) {
      return;
    }
    held.push_back({.at = (bytes.begin - access.offset) / element_bytes,
                    .buffer = static_cast<uint32_t>(value.origin),
                    .begin = bytes.begin / element_bytes + value.distance,
                    .end = bytes.end / element_bytes + value.distance,
                    .element_bytes = element_bytes});
  });
  return held;
}

Updates::Updates(const v1::Program& program, const StateIndex& state, const CheckedSequence& train,
                 const Flow& flow)
    : program_(program),
      state_(state),
      train_(train),
      flow_(flow),
      frozen_(FrozenTensors(program)),
      rules_(program),
      updated_(program.buffers_size()) {}

absl::Status Updates::Check(int i) {
  const v1::Instruction& source = train_.sequence->instructions(i);
  const CheckedInstruction& instruction = train_.instructions[i];
  if (instruction.op.has_value() && kernels::IsUpdate(instruction.op->op)) {
    return CheckOptimizer(i, Where(*train_.sequence, source));
  }
  if (source.kind_case() != v1::Instruction::kCopy) return absl::OkStatus();
  for (int to = 1; to < source.operands_size(); to += 2) {
    const Access& target = *instruction.Find(to);
    if (!state_.bytes(target.buffer).Meets({target.offset, target.end()})) continue;
    const int64_t element_bytes =
        kernels::SizeOf(static_cast<kernels::DType>(source.operands(to).dtype()));
    RETURN_IF_ERROR(CheckWriteBack(*instruction.Find(to - 1), target, element_bytes,
                                   Where(*train_.sequence, source)));
  }
  return absl::OkStatus();
}

// ---- the optimizer ------------------------------------------------------------------------------

absl::Status Updates::CheckOptimizer(int i, const std::string& where) {
  const CheckedInstruction& instruction = train_.instructions[i];
  const auto& attrs = std::get<kernels::UpdateAttrs>(instruction.op->attrs);
  const Op op = instruction.op->op;
  const std::vector<Moment> moments = MomentsOf(instruction);
  const auto is_dense = [&](int operand) {
    return instruction.Find(operand)->rows == 1
               ? absl::OkStatus()
               : Refuse(where, ": operand ", operand, " must be dense");
  };
  for (int operand = 0; operand <= kParam; ++operand) RETURN_IF_ERROR(is_dense(operand));
  RETURN_IF_ERROR(CheckHeld(*instruction.Find(kParam), "weight", where));
  for (const Moment& moment : moments) {
    RETURN_IF_ERROR(is_dense(moment.operand));
    RETURN_IF_ERROR(CheckHeld(*instruction.Find(moment.operand), "moment", where));
  }
  for (const Moment& moment : moments) {
    if (op != Op::kUpdateInt8) continue;
    const int scales = kScales + moment.operand - kMoments;
    RETURN_IF_ERROR(CheckHeld(*instruction.Find(scales), "scale of moments", where));
  }
  const std::vector<Held> weights = HeldState(flow_, train_, i, kParam);
  for (const Held& weight : weights) {
    RETURN_IF_ERROR(CheckWeight(weight, where));
    RETURN_IF_ERROR(CheckRule(weight, attrs.rule, where));
    RETURN_IF_ERROR(CheckRate(weight, attrs, where));
  }
  if (op == Op::kUpdateMatrix) RETURN_IF_ERROR(WholeTensors(weights, i, where).status());
  if (op == Op::kUpdateFactored) RETURN_IF_ERROR(CheckFactored(weights, i, where));
  if (op == Op::kUpdateStochastic) RETURN_IF_ERROR(CheckRounding(attrs.rounding, weights, where));
  for (const Moment& moment : moments) {
    if (IsFactor(moment.kind)) continue;
    RETURN_IF_ERROR(CheckMoments(weights, i, moment.operand, moment.kind, where));
    if (op != Op::kUpdateInt8) continue;
    const int index = moment.operand - kMoments;
    RETURN_IF_ERROR(CheckScales(i, moment.operand, kScales + index, kScalesKinds[index], where));
  }
  return absl::OkStatus();
}

std::vector<Updates::Moment> Updates::MomentsOf(const CheckedInstruction& instruction) const {
  std::vector<Moment> moments;
  const bool factored = instruction.op->op == Op::kUpdateFactored;
  const auto& attrs = std::get<kernels::UpdateAttrs>(instruction.op->attrs);
  const int count =
      factored ? static_cast<int>(std::size(kFactoredKinds)) : kernels::RowOf(attrs.rule).moments;
  for (int i = 0; i < count; ++i) {
    if (instruction.Find(kMoments + i) != nullptr)
      moments.push_back({kMoments + i, factored ? kFactoredKinds[i] : kMomentKinds[i]});
  }
  return moments;
}

// Each state that the rule keeps of a tensor is updated with it, means of rows and columns as
// wholes.
absl::Status Updates::CheckFactored(const std::vector<Held>& weights, int i,
                                    const std::string& where) const {
  ASSIGN_OR_RETURN(const std::vector<const v1::StateRange*> tensors,
                   WholeTensors(weights, i, where));
  const std::vector<Moment> moments = MomentsOf(train_.instructions[i]);
  std::vector<v1::StateKind> kinds;
  for (const Moment& moment : moments) kinds.push_back(moment.kind);
  for (const v1::StateRange* const tensor : tensors) {
    if (tensor == nullptr || kinds == rules_.Moments(tensor->tensor(), tensor->shape_size() >= 2)) {
      continue;
    }
    return Refuse(where, ": does not update just the states that the rule ",
                  Absl(rules_.Of(tensor->tensor()).name), " keeps of '", tensor->tensor(), "'");
  }
  for (const Moment& moment : moments) {
    if (IsFactor(moment.kind)) RETURN_IF_ERROR(CheckFactor(tensors, weights, i, moment, where));
  }
  return absl::OkStatus();
}

// In every shard the operand is that of the tensor which the weights are there, all of it, or
// padding beside padding.
absl::Status Updates::CheckFactor(const std::vector<const v1::StateRange*>& tensors,
                                  const std::vector<Held>& weights, int i, const Moment& moment,
                                  const std::string& where) const {
  const int64_t size = train_.sequence->instructions(i).operands(moment.operand).shape(0);
  const std::vector<Held> held = HeldState(flow_, train_, i, moment.operand);
  const auto refuse = [&](const v1::StateRange* tensor) {
    return Refuse(where, ": operand ", moment.operand, " is not the ",
                  v1::StateKind_Name(moment.kind), " of '",
                  (tensor == nullptr ? *FirstOf(tensors) : *tensor).tensor(), "', all of it");
  };
  if (held.size() != 1 || held[0].at != 0 || held[0].end - held[0].begin != size)
    return refuse(nullptr);
  const int64_t shard = state_.shard_elements(held[0].buffer);
  if ((shard > 0) != (state_.shard_elements(weights[0].buffer) > 0)) return refuse(nullptr);
  for (size_t s = 0; s < tensors.size(); ++s) {
    const int64_t first = static_cast<int64_t>(s) * shard + held[0].begin;
    const ByteRange bytes = {first * held[0].element_bytes, (first + size) * held[0].element_bytes};
    bool found = tensors[s] == nullptr;
    state_.ForEach(held[0].buffer, bytes.begin, bytes.end, [&](const v1::StateRange& range) {
      found = tensors[s] != nullptr && range.kind() == moment.kind &&
              range.tensor() == tensors[s]->tensor() && range.offset() == bytes.begin &&
              range.columns() == size;
    });
    if (!found) return refuse(tensors[s]);
  }
  return absl::OkStatus();
}

// Moments begin on a block, and the scales are those of just these blocks. Each operand is of one
// place of one buffer.
absl::Status Updates::CheckScales(int i, int operand, int scales_operand, v1::StateKind kind,
                                  const std::string& where) const {
  const int64_t block = std::get<kernels::UpdateAttrs>(train_.instructions[i].op->attrs).block;
  if (block != program_.rules().moment_block()) {
    return Refuse(where, ": blocks of ", block, " elements, rules.moment_block says ",
                  program_.rules().moment_block());
  }
  const auto first_of = [](const Held& held) { return held.begin - held.at; };
  const std::vector<Held> moments = HeldState(flow_, train_, i, operand);
  const std::vector<Held> scales = HeldState(flow_, train_, i, scales_operand);
  if (moments.empty() || scales.empty())
    return Refuse(where, ": operand ", scales_operand, " holds no scales");
  for (const std::vector<Held>* pieces : {&moments, &scales}) {
    for (const Held& piece : *pieces) {
      const Held& first = pieces->front();
      if (piece.buffer == first.buffer && first_of(piece) == first_of(first)) continue;
      return Refuse(where, ": operand ", pieces == &moments ? operand : scales_operand,
                    " mixes state of several places");
    }
  }
  const int64_t moment = first_of(moments.front()), scale = first_of(scales.front());
  if (moment == scale * block &&
      state_.ScalesOf(moments.front().buffer, scales.front().buffer, kind, block)) {
    return absl::OkStatus();
  }
  return Refuse(where, ": operand ", scales_operand, ", element ", scale, " of ",
                BufferText(program_, scales.front().buffer), " on, is not the ",
                v1::StateKind_Name(kind), " of blocks of ", block, " from element ", moment, " of ",
                BufferText(program_, moments.front().buffer), " on");
}

// The random bits are those of the elements that the operand holds.
absl::Status Updates::CheckRounding(const kernels::RoundingAttrs& rounding,
                                    const std::vector<Held>& weights,
                                    const std::string& where) const {
  for (const Held& weight : weights) {
    const int64_t first = weight.begin - weight.at;
    if (rounding.buffer == weight.buffer && rounding.first == first) continue;
    return Refuse(where, ": rounds with the bits of element ", rounding.first, " of buffer ",
                  rounding.buffer, " on, its weights are element ", first, " of ",
                  BufferText(program_, weight.buffer), " on");
  }
  return absl::OkStatus();
}

// Every byte is state as the step found it.
absl::Status Updates::CheckHeld(const Access& access, const char* what,
                                const std::string& where) const {
  absl::Status status;
  flow_.content(access.buffer)
      .ForEach({access.offset, access.end()}, [&](const ByteRange& bytes, int number) {
        if (!status.ok()) return;
        const auto byte = [&] {
          return absl::StrCat("byte ", bytes.begin, " of ", BufferText(program_, access.buffer));
        };
        if (number == ByteMap::kNone || flow_.values()[number].role != Value::kState) {
          status = Refuse(where, ": operand ", access.operand, ", ", byte(), " is no ", what);
          return;
        }
        const Value& value = flow_.values()[number];
        if (value.updated) status = Refuse(where, ": updates ", byte(), " a second time");
        if (value.rounded) status = Refuse(where, ": ", byte(), " is a rounded copy of a ", what);
      });
  return status;
}

absl::Status Updates::CheckWeight(const Held& weight, const std::string& where) {
  const std::string buffer = BufferText(program_, weight.buffer);
  const ByteRange bytes = weight.bytes();
  const int64_t missing =
      state_.bytes(weight.buffer)
          .FirstMissing({.offset = bytes.begin, .row_bytes = bytes.end - bytes.begin});
  if (missing >= 0) return Refuse(where, ": byte ", missing, " of ", buffer, " is no weight");
  absl::Status status;
  const bool sharded = state_.shard_elements(weight.buffer) > 0;
  state_.ForEach(weight.buffer, sharded ? 0 : bytes.begin, sharded ? INT64_MAX : bytes.end,
                 [&](const v1::StateRange& range) {
                   if (range.kind() != v1::WEIGHT)
                     status =
                         Refuse(where, ": byte ", range.offset(), " of ", buffer, " is no weight");
                   if (frozen_.contains(range.tensor()))
                     status = Refuse(where, ": updates '", range.tensor(), "', which is frozen");
                 });
  RETURN_IF_ERROR(status);
  updated_[weight.buffer].ForEach(bytes, [&](const ByteRange& piece, int value) {
    if (value == ByteMap::kNone || !status.ok()) return;
    status = Refuse(where, ": updates byte ", piece.begin, " of ", buffer, " a second time");
  });
  RETURN_IF_ERROR(status);
  updated_[weight.buffer].Set(bytes, 1);
  return absl::OkStatus();
}

absl::Status Updates::CheckRule(const Held& weight, kernels::OptimizerRule rule,
                                const std::string& where) const {
  const ByteRange bytes = weight.bytes();
  const bool sharded = state_.shard_elements(weight.buffer) > 0;
  absl::Status status;
  state_.ForEach(weight.buffer, sharded ? 0 : bytes.begin, sharded ? INT64_MAX : bytes.end,
                 [&](const v1::StateRange& range) {
                   const kernels::OptimizerRow& own = rules_.Of(range.tensor());
                   if (own.rule == rule || !status.ok()) return;
                   status = Refuse(where, ": updates '", range.tensor(), "' by the rule ",
                                   Absl(kernels::RowOf(rule).name), ", the program says ",
                                   Absl(own.name));
                 });
  return status;
}

// The operand is one tensor, all of it, in its own rows and columns: on every rank, where weights
// lie in shards, but for those that have padding there.
absl::StatusOr<std::vector<const v1::StateRange*>> Updates::WholeTensors(
    const std::vector<Held>& weights, int i, const std::string& where) const {
  const v1::Operand& param = train_.sequence->instructions(i).operands(kParam);
  const int64_t rows = param.shape(0), columns = param.shape(1);
  bool whole = weights.size() == 1 && weights[0].at == 0 &&
               weights[0].end - weights[0].begin == rows * columns;
  const int64_t shard = whole ? state_.shard_elements(weights[0].buffer) : 0;
  const int64_t shards = shard > 0 ? ShardCount(program_.grid()) : 1;
  std::vector<const v1::StateRange*> tensors;
  for (int64_t s = 0; s < shards && whole; ++s) {
    const int64_t first = s * shard + weights[0].begin;
    const ByteRange bytes = {first * weights[0].element_bytes,
                             (first + rows * columns) * weights[0].element_bytes};
    const v1::StateRange* tensor = nullptr;
    state_.ForEach(weights[0].buffer, bytes.begin, bytes.end, [&](const v1::StateRange& range) {
      whole = whole && tensor == nullptr && range.split() == v1::StateRange::WHOLE &&
              range.offset() == bytes.begin && RowsOf(range) == rows &&
              ColumnsOf(range) == columns && range.rows() == rows && range.columns() == columns &&
              (rows == 1 || range.row_stride() == columns);
      tensor = &range;
    });
    tensors.push_back(tensor);
  }
  if (whole && FirstOf(tensors) != nullptr) return tensors;
  const bool matrix = train_.instructions[i].op->op == Op::kUpdateMatrix;
  return Refuse(where, ": its weights, [", rows, ", ", columns, "], are not one ",
                matrix ? "matrix" : "tensor", " of the model, all of it",
                shard > 0 ? ", on every rank" : "");
}

// A tensor may be updated in pieces, all of them alike.
absl::Status Updates::CheckRate(const Held& weight, const kernels::UpdateAttrs& attrs,
                                const std::string& where) {
  const ByteRange bytes = weight.bytes();
  const bool sharded = state_.shard_elements(weight.buffer) > 0;
  absl::Status status;
  state_.ForEach(weight.buffer, sharded ? 0 : bytes.begin, sharded ? INT64_MAX : bytes.end,
                 [&](const v1::StateRange& range) {
                   const Rate rate = {attrs.lr_scale, attrs.weight_decay};
                   const auto [known, is_new] = rates_.try_emplace(range.tensor(), rate);
                   if (is_new || known->second == rate) return;
                   status =
                       Refuse(where, ": updates ", range.tensor(), " with lr_scale ", rate.lr_scale,
                              " and weight_decay ", rate.weight_decay, ", another part of it with ",
                              known->second.lr_scale, " and ", known->second.weight_decay);
                 });
  return status;
}

// Piece by piece: one of the weights against one of the moments. Both cover all of their operands,
// which are equally long.
absl::Status Updates::CheckMoments(const std::vector<Held>& weights, int i, int operand,
                                   v1::StateKind kind, const std::string& where) const {
  const Access& moment = *train_.instructions[i].Find(operand);
  const std::vector<Held> moments = HeldState(flow_, train_, i, operand);
  auto m = moments.begin();
  for (const Held& weight : weights) {
    int64_t at = weight.at;
    const int64_t end = weight.at + weight.end - weight.begin;
    while (at < end && m != moments.end()) {
      const int64_t piece_end = std::min(end, m->at + m->end - m->begin);
      const auto cut = [&](Held held) {
        held.end = held.begin + piece_end - held.at;
        held.begin += at - held.at;
        held.at = at;
        return held;
      };
      RETURN_IF_ERROR(CheckMoment(cut(weight), cut(*m), kind,
                                  absl::StrCat(where, ": operand ", operand, " at byte ",
                                               moment.offset + at * m->element_bytes, " of ",
                                               BufferText(program_, moment.buffer))));
      at = piece_end;
      if (at == m->at + m->end - m->begin) ++m;
    }
  }
  return absl::OkStatus();
}

absl::Status Updates::CheckMoment(const Held& weight, const Held& moment, v1::StateKind kind,
                                  const std::string& where) const {
  const auto refuse = [&](const v1::StateRange& range) {
    return Refuse(where, " is not the ", v1::StateKind_Name(kind), " of '", range.tensor(), "'");
  };
  absl::Status status;
  if (state_.shard_elements(weight.buffer) > 0) {
    if (weight.begin == moment.begin && state_.SameRegion(weight.buffer, moment.buffer, kind))
      return status;
    state_.ForEach(weight.buffer, 0, INT64_MAX,
                   [&](const v1::StateRange& range) { status = refuse(range); });
    return status;
  }
  const ByteRange bytes = weight.bytes(), moment_bytes = moment.bytes();
  state_.ForEach(weight.buffer, bytes.begin, bytes.end, [&](const v1::StateRange& range) {
    const int64_t element = moment.begin + range.offset() / weight.element_bytes - weight.begin;
    const int64_t place = element * moment.element_bytes;
    bool found = false;
    state_.ForEach(
        moment.buffer, moment_bytes.begin, moment_bytes.end, [&](const v1::StateRange& other) {
          found = found ||
                  (other.kind() == kind && other.offset() == place && SamePlaces(other, range));
        });
    if (!found && status.ok()) status = refuse(range);
  });
  return status;
}

// ---- the way back -------------------------------------------------------------------------------

absl::Status Updates::CheckWriteBack(const Access& source, const Access& target,
                                     int64_t element_bytes, const std::string& where) const {
  const int64_t moved = target.offset - source.offset;
  absl::Status status;
  flow_.content(source.buffer)
      .ForEach({source.offset, source.end()}, [&](const ByteRange& bytes, int number) {
        const ByteRange to = {bytes.begin + moved, bytes.end + moved};
        if (!status.ok() || !state_.bytes(target.buffer).Meets(to)) return;
        const auto refuse = [&](const auto&... rule) {
          return Refuse(where, ": writes byte ", bytes.begin, " of ",
                        BufferText(program_, source.buffer), " over the state at byte ", to.begin,
                        " of ", BufferText(program_, target.buffer), ", ", rule...);
        };
        if (number == ByteMap::kNone || flow_.values()[number].role != Value::kState) {
          status = refuse("and it is no state");
          return;
        }
        const Value& value = flow_.values()[number];
        const int64_t home = bytes.begin + value.distance * element_bytes;
        if (value.origin != static_cast<int>(target.buffer) || home != to.begin) {
          status =
              refuse("and it belongs to byte ", home, " of ", BufferText(program_, value.origin));
        } else if (value.rounded || value.spoiled_by >= 0) {
          status = refuse("and it was rounded in between");
        } else if (!value.updated) {
          status = refuse("and no optimizer op has updated it");
        }
      });
  return status;
}

// What the optimizer changed is where it belongs.
absl::Status Updates::CheckHome(const v1::StateRange& range) const {
  absl::Status status;
  ForEachHeld(range, [&](const ByteRange& bytes) {
    flow_.content(range.buffer()).ForEach(bytes, [&](const ByteRange& piece, int number) {
      const bool home = number != ByteMap::kNone && flow_.values()[number].updated;
      if (home || !status.ok()) return;
      status =
          Refuse("'", train_.sequence->name(), "': byte ", piece.begin, " of ",
                 BufferText(program_, range.buffer()), ", ", v1::StateKind_Name(range.kind()),
                 " of '", range.tensor(), "', is updated in a copy that is never written back");
    });
  });
  return status;
}

absl::Status Updates::CheckComplete() const {
  for (const v1::StateRange& range : program_.state()) {
    if (range.kind() != v1::WEIGHT || frozen_.contains(range.tensor())) continue;
    absl::Status status;
    ForEachHeld(range, [&](const ByteRange& bytes) {
      updated_[range.buffer()].ForEach(bytes, [&](const ByteRange& piece, int value) {
        if (value != ByteMap::kNone || !status.ok()) return;
        status = Refuse("'", train_.sequence->name(), "': byte ", piece.begin, " of ",
                        BufferText(program_, range.buffer()), ", weight '", range.tensor(),
                        "', is updated by no optimizer op");
      });
    });
    RETURN_IF_ERROR(status);
  }
  for (const v1::StateRange& range : program_.state()) {
    if (range.kind() != v1::RESIDUAL && !frozen_.contains(range.tensor()))
      RETURN_IF_ERROR(CheckHome(range));
  }
  return absl::OkStatus();
}

}  // namespace terrace::check
