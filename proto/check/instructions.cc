// SPDX-License-Identifier: Apache-2.0
#include "proto/check/instructions.h"

#include <algorithm>
#include <initializer_list>
#include <string>

#include "base/status_macros.h"
#include "base/strings.h"
#include "kernels/op.h"
#include "proto/check/refuse.h"
#include "proto/check/structure.h"
#include "proto/grid.h"

namespace terrace::check {
namespace {

using kernels::Op;
using kernels::TensorShape;

// Walking a strided operand row by row must end.
constexpr int64_t kStridedRowsMax = 1 << 24;

absl::Status CheckSchedule(const v1::Program& program, const v1::Sequence& sequence, int position) {
  const v1::Instruction& instruction = sequence.instructions(position);
  const std::string where = Where(sequence, instruction);
  if (instruction.id() != static_cast<uint32_t>(position)) {
    return Refuse(where, ": stands at position ", position, ", its id must be the same");
  }
  if (instruction.stream() >= static_cast<uint32_t>(program.streams_size())) {
    return Refuse(where, ": stream ", instruction.stream(), " of ", program.streams_size(),
                  " does not exist");
  }
  for (uint32_t wait : instruction.waits()) {
    if (wait >= instruction.id())
      return Refuse(where, ": waits for ", wait, ", which is not earlier");
    if (sequence.instructions(wait).stream() == instruction.stream()) {
      return Refuse(where, ": waits for ", wait,
                    " on its own stream, where order is program order");
    }
  }
  if (!v1::Phase_IsValid(instruction.phase()))
    return Refuse(where, ": phase ", instruction.phase(), " does not exist");
  if (instruction.layer() < -1 || instruction.micro_batch() < -1) {
    return Refuse(where, ": layer ", instruction.layer(), " and micro_batch ",
                  instruction.micro_batch(), " must be -1 (none) or more");
  }
  return absl::OkStatus();
}

// One operand as bytes; `shape` receives its decoded form.
absl::StatusOr<Access> CheckOperand(const v1::Program& program, const v1::Sequence& sequence,
                                    const v1::Operand& operand, int index, const std::string& where,
                                    TensorShape* shape) {
  if (!v1::Access_IsValid(operand.access()))
    return Refuse(where, ": access ", operand.access(), " does not exist");
  if (operand.buffer() >= static_cast<uint32_t>(program.buffers_size())) {
    return Refuse(where, ": buffer ", operand.buffer(), " of ", program.buffers_size(),
                  " does not exist");
  }
  const v1::Buffer& buffer = program.buffers(operand.buffer());
  const std::string buffer_text = BufferText(program, operand.buffer());
  if (buffer.lifetime() == v1::STEP && buffer.sequence() != sequence.name()) {
    return Refuse(where, ": ", buffer_text, " belongs to sequence '", buffer.sequence(), "'");
  }
  const absl::StatusOr<TensorShape> decoded = DecodeShape(operand);
  if (!decoded.ok()) return Refuse(where, ": ", buffer_text, ": ", decoded.status().message());
  *shape = *decoded;
  const int64_t element_bytes = kernels::SizeOf(shape->dtype);
  if (operand.offset() < 0 || operand.offset() % element_bytes != 0) {
    return Refuse(where, ": offset ", operand.offset(), " in ", buffer_text,
                  " must be a multiple of ", element_bytes);
  }
  if (operand.offset() > buffer.bytes() || shape->SpanBytes() > buffer.bytes() - operand.offset()) {
    return Refuse(where, ": bytes [", operand.offset(), ", +", shape->SpanBytes(),
                  ") must lie inside ", buffer_text, " of ", buffer.bytes(), " bytes");
  }
  Access access = {.buffer = operand.buffer(),
                   .offset = operand.offset(),
                   .row_bytes = shape->SpanBytes(),
                   .reads = operand.access() != v1::WRITE,
                   .writes = operand.access() != v1::READ,
                   .operand = index};
  if (!shape->dense() && shape->rows() > 1) {
    if (shape->rows() > kStridedRowsMax)
      return Refuse(where, ": has ", shape->rows(), " strided rows, at most ", kStridedRowsMax);
    access.rows = shape->rows();
    access.row_bytes = shape->RowElements() * element_bytes;
    access.stride_bytes = shape->row_stride * element_bytes;
  }
  return access;
}

// The access that the table asks for, in the program's terms.
v1::Access Expected(kernels::Access access) {
  switch (access) {
    case kernels::Access::kRead:
      return v1::READ;
    case kernels::Access::kWrite:
      return v1::WRITE;
    case kernels::Access::kUpdate:
      return v1::UPDATE;
    case kernels::Access::kNone:
      break;
  }
  return v1::ACCESS_UNSPECIFIED;
}

absl::Status CheckWorkspace(const v1::Program& program, const v1::Sequence& sequence,
                            const v1::ComputeOp& compute, int64_t needed_bytes,
                            const std::string& where, CheckedInstruction* checked) {
  const v1::Operand& workspace = compute.workspace();
  if (workspace.access() == v1::ACCESS_UNSPECIFIED) {
    if (needed_bytes == 0) return absl::OkStatus();
    return Refuse(where, ": needs a workspace of ", needed_bytes, " bytes and has none");
  }
  TensorShape shape;
  ASSIGN_OR_RETURN(const Access access,
                   CheckOperand(program, sequence, workspace, kWorkspaceOperand, where, &shape));
  if (workspace.access() != v1::WRITE || workspace.dtype() != v1::U8 || !shape.dense()) {
    return Refuse(where, ": its workspace must be a dense u8 slice with access WRITE");
  }
  if (access.row_bytes < needed_bytes) {
    return Refuse(where, ": needs a workspace of ", needed_bytes, " bytes, ",
                  BufferText(program, access.buffer), " gives it ", access.row_bytes);
  }
  checked->accesses.push_back(access);
  return absl::OkStatus();
}

absl::Status CheckCompute(const v1::Program& program, const v1::Sequence& sequence,
                          const v1::Instruction& instruction,
                          const std::vector<TensorShape>& shapes, const std::string& where,
                          CheckedInstruction* checked) {
  absl::StatusOr<DecodedOp> op = DecodeOp(instruction.compute());
  if (!op.ok()) return Refuse(where, ": ", op.status().message());
  const std::string problem = kernels::CheckShapes(op->op, op->attrs, shapes);
  if (!problem.empty()) return Refuse(where, ": ", problem);
  for (int i = 0; i < instruction.operands_size(); ++i) {
    const v1::Access expected = Expected(kernels::OperandAccess(op->op, op->attrs, i));
    const v1::Access access = instruction.operands(i).access();
    if (access != v1::ACCESS_UNSPECIFIED && access != expected) {
      return Refuse(where, ": operand '", Absl(kernels::OperandName(op->op, i)), "' has access ",
                    v1::Access_Name(access), ", the op table says ", v1::Access_Name(expected));
    }
  }
  const int64_t needed_bytes =
      kernels::WorkspaceBytes(op->op, op->attrs, shapes, static_cast<int>(program.threads()));
  checked->op = *std::move(op);
  return CheckWorkspace(program, sequence, instruction.compute(), needed_bytes, where, checked);
}

// What one operand of an instruction without an op table entry must be.
struct OperandRule {
  v1::Access access = v1::READ;
  v1::DType dtype = v1::F32;   // DTYPE_UNSPECIFIED: any
  std::vector<int64_t> shape;  // 0: any size
  bool any_shape = false;
  bool optional = false;
};

bool Fits(const v1::Operand& operand, const OperandRule& rule) {
  if (rule.optional && operand.access() == v1::ACCESS_UNSPECIFIED) return true;
  if (operand.access() != rule.access || operand.row_stride() != 0) return false;
  if (rule.dtype != v1::DTYPE_UNSPECIFIED && operand.dtype() != rule.dtype) return false;
  if (rule.any_shape) return true;
  if (operand.shape_size() != static_cast<int>(rule.shape.size())) return false;
  for (int d = 0; d < operand.shape_size(); ++d) {
    if (rule.shape[d] != 0 && operand.shape(d) != rule.shape[d]) return false;
  }
  return true;
}

absl::Status CheckRules(const v1::Instruction& instruction,
                        std::initializer_list<OperandRule> rules, const std::string& where) {
  if (instruction.operands_size() != static_cast<int>(rules.size())) {
    return Refuse(where, ": has ", instruction.operands_size(), " operands, must have ",
                  rules.size());
  }
  for (int i = 0; i < instruction.operands_size(); ++i) {
    const OperandRule& rule = rules.begin()[i];
    if (Fits(instruction.operands(i), rule)) continue;
    return Refuse(where, ": operand ", i, " is not what program.proto says of this instruction: ",
                  v1::Access_Name(rule.access), ", dense, ",
                  rule.dtype == v1::DTYPE_UNSPECIFIED ? "of any type" : v1::DType_Name(rule.dtype),
                  rule.any_shape ? "" : absl::StrCat(", ", rule.shape.size(), " dimensions"));
  }
  return absl::OkStatus();
}

absl::Status CheckLoadBatch(const v1::Instruction& instruction, const std::string& where) {
  const OperandRule ids = {.access = v1::WRITE, .dtype = v1::I32, .shape = {0}, .optional = true};
  RETURN_IF_ERROR(CheckRules(instruction, {ids, ids}, where));
  const v1::Operand& tokens = instruction.operands(0);
  const v1::Operand& targets = instruction.operands(1);
  const bool loads_tokens = tokens.access() != v1::ACCESS_UNSPECIFIED;
  const bool loads_targets = targets.access() != v1::ACCESS_UNSPECIFIED;
  if (!loads_tokens && !loads_targets) return Refuse(where, ": loads neither tokens nor targets");
  if (!loads_tokens || !loads_targets || tokens.shape(0) == targets.shape(0))
    return absl::OkStatus();
  return Refuse(where, ": tokens and targets must be of one length");
}

absl::Status CheckInput(const v1::Instruction& instruction, const std::string& where) {
  const OperandRule ids = {.access = v1::WRITE, .dtype = v1::I32, .shape = {0}};
  switch (instruction.input().kind()) {
    case v1::LOAD_BATCH:
      return CheckLoadBatch(instruction, where);
    case v1::LOAD_SCHEDULE:
      return CheckRules(instruction, {{.access = v1::WRITE, .shape = {4}}}, where);
    case v1::LOAD_PROMPT:
      return CheckRules(instruction, {ids, ids}, where);
    default:
      return Refuse(where, ": input kind ", instruction.input().kind(), " does not exist");
  }
}

absl::Status CheckOutput(const v1::Instruction& instruction, const std::string& where) {
  switch (instruction.output().kind()) {
    case v1::STEP_STATS:
      return CheckRules(instruction, {{.shape = {4}}}, where);
    case v1::LOSS_TOTAL:
      return CheckRules(instruction, {{.shape = {2}}}, where);
    case v1::LOGITS:
      return CheckRules(instruction, {{.shape = {0, 0}}}, where);
    default:
      return Refuse(where, ": output kind ", instruction.output().kind(), " does not exist");
  }
}

// The group exists and this stage is in it.
absl::StatusOr<const v1::Group*> CheckMembership(const v1::Program& program, uint32_t group,
                                                 const std::string& where) {
  if (group >= static_cast<uint32_t>(program.groups_size())) {
    return Refuse(where, ": group ", group, " of ", program.groups_size(), " does not exist");
  }
  if (HasStage(program.groups(group), program.stage())) return &program.groups(group);
  return Refuse(where, ": stage ", program.stage(), " is not in group '",
                program.groups(group).name(), "'");
}

// How many parts of equal size the operands of a collective have, and whether it adds.
struct CollectiveRule {
  int64_t parts0 = 1;
  int64_t parts1 = 0;  // 0: there is one operand
  bool sums = false;
};

absl::StatusOr<CollectiveRule> RuleOf(v1::CollectiveKind kind, int64_t members,
                                      const std::string& where) {
  switch (kind) {
    case v1::ALL_REDUCE:
      return CollectiveRule{.sums = true};
    case v1::BROADCAST:
      return CollectiveRule{};
    case v1::REDUCE_SCATTER:
      return CollectiveRule{.parts0 = members, .parts1 = 1, .sums = true};
    case v1::ALL_GATHER:
      return CollectiveRule{.parts0 = 1, .parts1 = members};
    case v1::ALL_TO_ALL:
      return CollectiveRule{.parts0 = members, .parts1 = members};
    case v1::RING_SHIFT:
      return CollectiveRule{.parts0 = 1, .parts1 = 1};
    default:
      return Refuse(where, ": collective kind ", kind, " does not exist");
  }
}

int64_t Elements(const v1::Operand& operand) {
  int64_t elements = 1;
  for (int64_t size : operand.shape()) elements *= size;
  return elements;
}

absl::Status CheckCollective(const v1::Program& program, const v1::Instruction& instruction,
                             const std::string& where) {
  const v1::CollectiveOp& op = instruction.collective();
  ASSIGN_OR_RETURN(const v1::Group* group, CheckMembership(program, op.group(), where));
  const int64_t members = GroupSize(program.grid(), *group);
  ASSIGN_OR_RETURN(const CollectiveRule rule, RuleOf(op.kind(), members, where));
  const OperandRule any = {.dtype = v1::DTYPE_UNSPECIFIED, .any_shape = true};
  if (rule.parts1 == 0) {
    OperandRule update = any;
    update.access = v1::UPDATE;
    RETURN_IF_ERROR(CheckRules(instruction, {update}, where));
  } else {
    OperandRule write = any;
    write.access = v1::WRITE;
    RETURN_IF_ERROR(CheckRules(instruction, {any, write}, where));
  }
  const v1::Operand& first = instruction.operands(0);
  const v1::Operand& last = instruction.operands(instruction.operands_size() - 1);
  const bool adds = first.dtype() == v1::F32 || first.dtype() == v1::BF16;
  if (first.dtype() != last.dtype() || (rule.sums && !adds)) {
    return Refuse(where, ": its operands must have one type, f32 or bf16 where it adds");
  }
  if (rule.parts1 == 0) return absl::OkStatus();
  const int64_t part = Elements(first) / rule.parts0;
  if (Elements(first) == part * rule.parts0 && Elements(last) == part * rule.parts1)
    return absl::OkStatus();
  return Refuse(where, ": operands of ", Elements(first), " and ", Elements(last),
                " elements must hold ", rule.parts0, " and ", rule.parts1, " equal parts, group '",
                group->name(), "' having ", members, " ranks");
}

absl::Status CheckTransfer(const v1::Program& program, const v1::Instruction& instruction,
                           const std::string& where) {
  const v1::TransferOp& op = instruction.transfer();
  if (op.kind() != v1::SEND && op.kind() != v1::RECEIVE) {
    return Refuse(where, ": transfer kind ", op.kind(), " does not exist");
  }
  ASSIGN_OR_RETURN(const v1::Group* group, CheckMembership(program, op.group(), where));
  if (group->axes_size() != 1 || group->axes(0) != v1::PIPELINE) {
    return Refuse(where, ": group '", group->name(), "' must have the axis PIPELINE only");
  }
  if (op.peer_stage() >= program.stages() || op.peer_stage() == program.stage() ||
      !HasStage(*group, op.peer_stage())) {
    return Refuse(where, ": peer_stage ", op.peer_stage(), " must be another stage of group '",
                  group->name(), "', this is stage ", program.stage(), " of ", program.stages());
  }
  return CheckRules(instruction,
                    {{.access = op.kind() == v1::SEND ? v1::READ : v1::WRITE,
                      .dtype = v1::DTYPE_UNSPECIFIED,
                      .any_shape = true}},
                    where);
}

// Operands of an op that may be the very same memory although one is written (the comments of
// kernels/op.h).
bool MayBeSame(Op op, int a, int b) {
  const auto is = [&](int x, int y) { return (a == x && b == y) || (a == y && b == x); };
  switch (op) {
    case Op::kLayerNormGrad:
      return is(6, 0) || is(6, 5);
    case Op::kRmsNormGrad:
      return is(5, 0) || is(5, 4);
    case Op::kMatmul:
      return is(2, 4);
    case Op::kGelu:
      return is(0, 1);
    case Op::kGeluGrad:
      return is(0, 2);
    case Op::kSwigluGrad:
      return is(1, 3) || is(2, 4);
    case Op::kAddResidual:
      return is(3, 0) || is(3, 1);
    default:
      return false;
  }
}

bool SameBytes(const Access& a, const Access& b) {
  return a.buffer == b.buffer && a.offset == b.offset && a.rows == b.rows &&
         a.row_bytes == b.row_bytes && a.stride_bytes == b.stride_bytes;
}

// An instruction may not write what another of its operands reads or writes, unless its op says so.
absl::Status CheckAliases(const v1::Program& program, const CheckedInstruction& checked,
                          const std::string& where) {
  for (size_t i = 0; i < checked.accesses.size(); ++i) {
    for (size_t j = i + 1; j < checked.accesses.size(); ++j) {
      const Access& a = checked.accesses[i];
      const Access& b = checked.accesses[j];
      if (a.buffer != b.buffer || (!a.writes && !b.writes) || !Overlap(a, b)) continue;
      const bool allowed = checked.op.has_value() && SameBytes(a, b) &&
                           MayBeSame(checked.op->op, a.operand, b.operand);
      if (!allowed) {
        return Refuse(where, ": operands ", a.operand, " and ", b.operand, " overlap in ",
                      BufferText(program, a.buffer), ", and one of them is written");
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<CheckedInstruction> CheckInstruction(const v1::Program& program,
                                                    const v1::Sequence& sequence, int position) {
  const v1::Instruction& instruction = sequence.instructions(position);
  RETURN_IF_ERROR(CheckSchedule(program, sequence, position));
  std::string where = Where(sequence, instruction);
  CheckedInstruction checked;
  std::vector<TensorShape> shapes(instruction.operands_size());
  for (int i = 0; i < instruction.operands_size(); ++i) {
    const v1::Operand& operand = instruction.operands(i);
    if (operand.access() == v1::ACCESS_UNSPECIFIED) continue;
    ASSIGN_OR_RETURN(const Access access,
                     CheckOperand(program, sequence, operand, i, where, &shapes[i]));
    checked.accesses.push_back(access);
  }
  if (!checked.accesses.empty()) {
    absl::StrAppend(&where, " with ", BufferText(program, checked.accesses[0].buffer));
  }
  switch (instruction.kind_case()) {
    case v1::Instruction::kCompute:
      RETURN_IF_ERROR(CheckCompute(program, sequence, instruction, shapes, where, &checked));
      break;
    case v1::Instruction::kCollective:
      RETURN_IF_ERROR(CheckCollective(program, instruction, where));
      break;
    case v1::Instruction::kTransfer:
      RETURN_IF_ERROR(CheckTransfer(program, instruction, where));
      break;
    case v1::Instruction::kInput:
      RETURN_IF_ERROR(CheckInput(instruction, where));
      break;
    case v1::Instruction::kOutput:
      RETURN_IF_ERROR(CheckOutput(instruction, where));
      break;
    case v1::Instruction::kCopy:
      return Refuse(where, ": copies between tiers are not known to this version");
    case v1::Instruction::KIND_NOT_SET:
      return Refuse(where, ": an instruction must do something");
  }
  RETURN_IF_ERROR(CheckAliases(program, checked, where));
  return checked;
}

}  // namespace

const Access* CheckedInstruction::Find(int index) const {
  for (const Access& access : accesses) {
    if (access.operand == index) return &access;
  }
  return nullptr;
}

absl::StatusOr<CheckedSequence> CheckInstructions(const v1::Program& program,
                                                  const v1::Sequence& sequence) {
  CheckedSequence checked;
  checked.sequence = &sequence;
  checked.instructions.reserve(sequence.instructions_size());
  for (int i = 0; i < sequence.instructions_size(); ++i) {
    ASSIGN_OR_RETURN(CheckedInstruction instruction, CheckInstruction(program, sequence, i));
    checked.instructions.push_back(std::move(instruction));
  }
  return checked;
}

bool Overlap(const Access& a, const Access& b) {
  if (a.buffer != b.buffer || a.offset >= b.end() || b.offset >= a.end()) return false;
  if (a.rows == 1 && b.rows == 1) return true;
  if (a.rows > 1 && b.rows > 1 && a.stride_bytes == b.stride_bytes) {
    // Columns of one matrix, whose rows begin where those of the first begin.
    const Access& first = a.offset <= b.offset ? a : b;
    const Access& second = a.offset <= b.offset ? b : a;
    const int64_t column = (second.offset - first.offset) % first.stride_bytes;
    const int64_t row = (second.offset - first.offset) / first.stride_bytes;
    if (row >= first.rows) return false;
    return column < first.row_bytes ||
           (column + second.row_bytes > first.stride_bytes && row + 1 < first.rows);
  }
  int64_t i = 0, j = 0;
  while (i < a.rows && j < b.rows) {
    const int64_t a_begin = a.offset + i * a.stride_bytes;
    const int64_t b_begin = b.offset + j * b.stride_bytes;
    if (a_begin < b_begin + b.row_bytes && b_begin < a_begin + a.row_bytes) return true;
    if (a_begin < b_begin) {
      ++i;
    } else {
      ++j;
    }
  }
  return false;
}

}  // namespace terrace::check
