// SPDX-License-Identifier: Apache-2.0
#include "proto/check/value/gradient.h"

#include <algorithm>

#include "base/status_macros.h"
#include "base/strings.h"
#include "kernels/op.h"
#include "kernels/tensor_view.h"
#include "proto/check/instruction/refuse.h"
#include "proto/check/value/announced.h"
#include "proto/program/grid.h"

namespace terrace::check {
namespace {

using kernels::Op;

// Operands of kUpdate and kUpdateStochastic in kernels/op.h.
constexpr int kGrad = 0, kParam = 1, kStep = 6;
// Micro-batches that are tried for the one that a message names.
constexpr uint32_t kNamedMax = 1 << 20;
// The schedule of lm_head_loss_grad, cross_entropy_grad and grad_scale.
constexpr int kHeadSchedule = 6, kEntropySchedule = 3, kScaleSchedule = 3;

bool Trains(const v1::Program& program) {
  const std::set<std::string> frozen = FrozenTensors(program);
  return std::any_of(program.state().begin(), program.state().end(), [&](const auto& range) {
    return range.kind() == v1::WEIGHT && !frozen.contains(range.tensor());
  });
}

const char* KindText(Value::Kind kind) {
  if (kind == Value::kScale) return "grad_scale made";
  return kind == Value::kStep ? "LOAD_SCHEDULE brought as the number of the step"
                              : "LOAD_SCHEDULE brought";
}

}  // namespace

std::string SpoiledText(const CheckedSequence& sequence, const Value& value) {
  return absl::StrCat("which ",
                      Where(*sequence.sequence, sequence.sequence->instructions(value.spoiled_by)),
                      " made unusable: it ", value.spoiled_why);
}

Gradients::Gradients(const v1::Program& program, const StateIndex& state,
                     const CheckedSequence& train, const Flow& flow,
                     std::map<std::string, StageFacts::Shared>* shared)
    : program_(program),
      state_(state),
      train_(train),
      flow_(flow),
      shared_(shared),
      trains_(Trains(program)),
      all_micro_batches_(MarksBelow(program.rules().micro_batches())),
      used_(program.buffers_size()) {}

std::string Gradients::WhereIs(int i) const {
  return Where(*train_.sequence, train_.sequence->instructions(i));
}

std::string Gradients::What(int i, int operand, int64_t byte) const {
  return absl::StrCat(WhereIs(i), ": relies on byte ", byte, " of ",
                      BufferText(program_, train_.instructions[i].Find(operand)->buffer), ", ");
}

absl::Status Gradients::Check(int i) {
  const v1::Instruction& source = train_.sequence->instructions(i);
  if (source.kind_case() == v1::Instruction::kOutput) {
    return source.output().kind() == v1::PREFERENCE
               ? CheckSameEverywhere(program_, train_, flow_, i)
               : CheckStatistics(i);
  }
  const CheckedInstruction& instruction = train_.instructions[i];
  ForgetWritten(instruction);
  if (!instruction.op.has_value()) return absl::OkStatus();
  switch (instruction.op->op) {
    case Op::kUpdateStochastic:
      RETURN_IF_ERROR(CheckKind(i, kStep, Value::kStep));
      return CheckOptimizer(i);
    case Op::kUpdate:
    case Op::kUpdateInt8:
    case Op::kUpdateMatrix:
    case Op::kUpdateFactored:
      return CheckOptimizer(i);
    case Op::kSquaredNorm:
      return CheckNormInput(i);
    case Op::kLmHeadLossGrad:
      return CheckFactor(i, kHeadSchedule);
    case Op::kCrossEntropyGrad:
      return CheckFactor(i, kEntropySchedule);
    case Op::kGradScale:
      RETURN_IF_ERROR(CheckFactor(i, kScaleSchedule));
      RETURN_IF_ERROR(NoteFactor(i));
      return CheckLoss(i);
    default:
      return absl::OkStatus();
  }
}

absl::Status Gradients::CheckKind(int i, int operand, Value::Kind kind) {
  absl::Status status;
  flow_.ForEach(
      *train_.instructions[i].Find(operand), [&](const ByteRange& bytes, const Value& value) {
        if (value.kind == kind || !status.ok()) return;
        status = Refuse(What(i, operand, bytes.begin), "which is not what ", KindText(kind));
      });
  return status;
}

// Whoever makes the gradient of the loss multiplies by the factor, and grad_scale divides by it:
// all of them, or none.
absl::Status Gradients::CheckFactor(int i, int operand) {
  const bool has = train_.instructions[i].Find(operand) != nullptr;
  if (has != program_.rules().has_loss_scale()) {
    return Refuse(WhereIs(i), ": its operand ", operand, ", the schedule, is ",
                  has ? "there" : "absent", ", rules.loss_scale is ", has ? "absent" : "there");
  }
  return has ? CheckKind(i, operand, Value::kSchedule) : absl::OkStatus();
}

absl::Status Gradients::CheckType(int i) const {
  const v1::Operand& gradient = train_.sequence->instructions(i).operands(kGrad);
  const uint32_t held = program_.buffers(static_cast<int>(gradient.buffer())).dtype();
  // What passes through staging has the type that it was copied with.
  const bool bytes = held == static_cast<uint32_t>(kernels::DType::kU8);
  if (bytes || gradient.dtype() == held) return absl::OkStatus();
  const auto name = [](uint32_t dtype) {
    return Absl(kernels::Name(static_cast<kernels::DType>(dtype)));
  };
  return Refuse(What(i, kGrad, gradient.offset()), "a gradient, as ", name(gradient.dtype()),
                ", must be ", name(held), " as the buffer is");
}

absl::Status Gradients::CheckOptimizer(int i) {
  RETURN_IF_ERROR(CheckType(i));
  const int scale = ScaleOperand(train_.instructions[i].op->op);
  RETURN_IF_ERROR(CheckKind(i, scale, Value::kScale));
  RETURN_IF_ERROR(CheckKind(i, scale + 1, Value::kSchedule));
  RETURN_IF_ERROR(NoteUse(i));
  const Access& grad = *train_.instructions[i].Find(kGrad);
  const int64_t element = flow_.ElementBytes(i, kGrad);
  absl::Status status;
  for (const Held& held : HeldState(flow_, train_, i, kParam)) {
    const int64_t moved = held.begin - (grad.offset / element + held.at);
    const WeightPlace place = {held.buffer, moved, held.element_bytes, element};
    const ByteRange bytes = {(held.begin - moved) * element, (held.end - moved) * element};
    flow_.content(grad.buffer).ForEach(bytes, [&](const ByteRange& piece, int number) {
      if (!status.ok()) return;
      status = number == ByteMap::kNone ? Refuse(What(i, kGrad, piece.begin), "which holds nothing")
                                        : CheckGradient(i, piece, flow_.values()[number], place);
    });
  }
  return status;
}

// A gradient is of one weight: where nothing else tells whose it is (a bias is no operand of what
// computes its gradient), two that take the same one give the mistake away.
absl::Status Gradients::CheckUnused(int i) {
  const CheckedInstruction& instruction = train_.instructions[i];
  if (!instruction.op.has_value() || !kernels::IsUpdate(instruction.op->op))
    return absl::OkStatus();
  const Access& grad = *instruction.Find(kGrad);
  const ByteRange bytes = {grad.offset, grad.end()};
  absl::Status status;
  used_[grad.buffer].ForEach(bytes, [&](const ByteRange& piece, int by) {
    if (by == ByteMap::kNone || !status.ok()) return;
    status = Refuse(What(i, kGrad, piece.begin), "with which ", WhereIs(by),
                    " has updated another weight");
  });
  used_[grad.buffer].Set(bytes, i);
  return status;
}

void Gradients::ForgetWritten(const CheckedInstruction& instruction) {
  for (const Access& access : instruction.accesses) {
    if (!access.writes || used_[access.buffer].empty()) continue;
    used_[access.buffer].Set({access.offset, access.end()}, ByteMap::kNone);
  }
}

absl::Status Gradients::CheckGradient(int i, const ByteRange& bytes, const Value& value,
                                      const WeightPlace& place) {
  if (value.scatter >= 0) return CheckShards(i, bytes, value, place);
  if (state_.shard_elements(place.buffer) > 0 && ShardCount(program_.grid()) > 1) {
    return Refuse(What(i, kGrad, bytes.begin),
                  value.spoiled_by >= 0 ? SpoiledText(train_, value)
                                        : "which is the gradient of whole weights, ",
                  value.spoiled_by >= 0 ? "" : BufferText(program_, place.buffer),
                  value.spoiled_by >= 0 ? "" : " holds a shard");
  }
  absl::Status status;
  const auto of_weight = [&](int64_t byte) {
    return (byte / place.gradient_bytes + place.moved) * place.element_bytes;
  };
  const int64_t end = of_weight(bytes.end) / place.element_bytes;
  state_.ForEach(place.buffer, of_weight(bytes.begin), of_weight(bytes.end),
                 [&](const v1::StateRange& weight) {
                   if (!status.ok()) return;
                   if (IsBeforePositions(weight, value, place, end)) return;
                   status = CheckFor(i, bytes.begin, weight, value, value.squared);
                 });
  RETURN_IF_ERROR(status);
  return CheckLink(i, bytes.begin, value, place.buffer, place.moved);
}

// The gradient is a shard: every rank's shard of it must belong to that rank's shard of the
// weights.
absl::Status Gradients::CheckShards(int i, const ByteRange& bytes, const Value& value,
                                    const WeightPlace& place) {
  const Scatter& scatter = flow_.values().scatter(value.scatter);
  const int64_t shard = state_.shard_elements(place.buffer);
  const AxisMask axes = flow_.values().Large({v1::CONTEXT, v1::DATA_SHARD});
  if (value.exchanged >= 0)
    return Refuse(What(i, kGrad, bytes.begin), "whose parts of all ranks were never added up");
  if (shard == 0 || scatter.axes != axes || scatter.shards != ShardCount(program_.grid()) ||
      scatter.block > 0) {
    return Refuse(What(i, kGrad, bytes.begin), "which is a shard over ", AxesText(scatter.axes),
                  scatter.block > 0 ? absl::StrCat(" in blocks of ", scatter.block) : "",
                  ", the weights in ", BufferText(program_, place.buffer),
                  shard == 0 ? " are whole" : absl::StrCat(" are shards over ", AxesText(axes)));
  }
  const int64_t first = bytes.begin / place.gradient_bytes + value.shift;
  const int64_t elements = (bytes.end - bytes.begin) / place.gradient_bytes;
  const int64_t param_first = bytes.begin / place.gradient_bytes + place.moved;
  absl::Status status;
  // Elements [begin, end) of the gradient's region are those of the weights' region `moved`
  // further.
  const auto check = [&](int64_t begin, int64_t end, int64_t moved) {
    scatter.content.ForEach({begin, end}, [&](const ByteRange& piece, int number) {
      if (number == ByteMap::kNone || !status.ok()) return;
      state_.ForEach(place.buffer, (piece.begin + moved) * place.element_bytes,
                     (piece.end + moved) * place.element_bytes, [&](const v1::StateRange& weight) {
                       const Value& gradient = flow_.values()[number];
                       if (!status.ok()) return;
                       if (IsBeforePositions(weight, gradient, place, piece.end + moved)) return;
                       status = CheckFor(i, bytes.begin, weight, gradient, value.squared);
                     });
      if (status.ok()) {
        status = CheckLink(i, bytes.begin, flow_.values()[number], place.buffer, moved);
      }
    });
  };
  if (first == 0 && param_first == 0 && elements == shard && shard == scatter.shard_elements) {
    check(0, scatter.shards * shard, 0);
    return status;
  }
  for (int64_t m = 0; m < scatter.shards && status.ok(); ++m) {
    const int64_t begin = m * scatter.shard_elements + first;
    check(begin, begin + elements, m * shard + param_first - begin);
  }
  return status;
}

// `moved`: from an element of the gradient to that of its weight.
absl::Status Gradients::CheckLink(int i, int64_t byte, const Value& value, uint32_t buffer,
                                  int64_t moved) {
  if (value.role != Value::kGradient) return absl::OkStatus();
  const int stranger = flow_.values().links().FindStranger(
      value.origin, {static_cast<int>(buffer), moved - value.distance});
  if (stranger < 0) return absl::OkStatus();
  return Refuse(What(i, kGrad, byte), "which ", WhereIs(stranger),
                " made as the gradient of other weights than ", BufferText(program_, buffer),
                " has there");
}

// A table of positions may have rows before that of the first one (opt). Nothing reads them, and
// their gradient is zero. `end`: the element of the weights' buffer behind the gradient's last.
bool Gradients::IsBeforePositions(const v1::StateRange& weight, const Value& value,
                                  const WeightPlace& place, int64_t end) const {
  if (!value.zero || value.spoiled_by >= 0) return false;
  const int64_t first = flow_.values().links().FirstPosition(static_cast<int>(place.buffer));
  if (first < end) return false;
  const int64_t bytes = place.element_bytes;
  bool same = false;
  state_.ForEach(place.buffer, first * bytes, (first + 1) * bytes,
                 [&](const v1::StateRange& table) { same = table.tensor() == weight.tensor(); });
  return same;
}

absl::Status Gradients::CheckFor(int i, int64_t byte, const v1::StateRange& weight,
                                 const Value& value, int squared) {
  const auto what = [&] {
    return absl::StrCat(What(i, kGrad, byte), "the gradient of '", weight.tensor(), "', ");
  };
  if (value.spoiled_by >= 0) return Refuse(what, SpoiledText(train_, value));
  if (value.zero || value.foreign || value.kind != Value::kNumbers) {
    return Refuse(what, "to which nothing of this stage was added");
  }
  const uint32_t tensor = flow_.values().tensor();
  const uint32_t same = weight.split() == v1::StateRange::WHOLE
                            ? tensor
                            : std::min(tensor, std::max(1u, weight.split_block()));
  const AxisMask axes = value.varies | value.parts;
  if (axes != 0) {
    return Refuse(what, "which differs over ", AxesText(axes), ": it was not summed over that");
  }
  if (value.same_block != same) {
    return Refuse(what, "which is the same on ", value.same_block,
                  " neighbours of the axis TENSOR, the weight on ", same,
                  value.same_block < same ? ": it was not summed over them"
                                          : ": it was summed over too many");
  }
  RETURN_IF_ERROR(CheckComplete(value, what));
  if (value.pipeline_group >= 0 || weight.copy()) {
    return CheckShared(i, weight, value, squared, what);
  }
  if (squared < 0) return Refuse(what, "which no squared norm counts");
  return CheckCounted(i, squared, what);
}

absl::Status Gradients::CheckShared(int i, const v1::StateRange& weight, const Value& value,
                                    int squared, Text what) {
  if (value.pipeline_group < 0) {
    return Refuse(what, "which was not summed over the stages that hold copies of the weight");
  }
  const auto known = shared_squares_.find(squared);
  const StageFacts::Shared shared = {
      .group = value.pipeline_group,
      .squares = known == shared_squares_.end() ? 0 : known->second,
      .where = absl::StrCat(WhereIs(i), " with ",
                            BufferText(program_, train_.instructions[i].Find(kGrad)->buffer))};
  const auto [entry, is_new] = shared_->emplace(weight.tensor(), shared);
  if (is_new || (entry->second.group == shared.group && entry->second.squares == shared.squares))
    return absl::OkStatus();
  return Refuse(what, "parts of which were summed over the stages in different ways");
}

// Every micro-batch is in it, each equally often.
absl::Status Gradients::CheckComplete(const Value& value, Text what) const {
  const uint32_t micro_batches = program_.rules().micro_batches();
  const uint64_t times = value.contributions / micro_batches;
  const Marks all = RepeatMarks(all_micro_batches_, times);
  if (value.contributions % micro_batches == 0 && times >= 1 && value.marks == all)
    return absl::OkStatus();
  const Marks too_many = SubtractMarks(value.marks, all);
  const Marks missing = SubtractMarks(all_micro_batches_, too_many);
  const uint32_t named = std::min(micro_batches, kNamedMax);
  for (uint32_t m = 0; m < named; ++m) {
    if (times >= 1 && too_many == MarkOf(m))
      return Refuse(what, "in which micro-batch ", m, " is once too often");
  }
  for (uint32_t m = 0; m < named; ++m) {
    if (missing == MarkOf(m)) return Refuse(what, "in which micro-batch ", m, " is missing once");
  }
  return Refuse(what, "which holds ", value.contributions, " contributions of ", micro_batches,
                " micro-batches, not each equally often");
}

}  // namespace terrace::check
