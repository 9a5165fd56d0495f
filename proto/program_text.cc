// SPDX-License-Identifier: Apache-2.0
#include "proto/program_text.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/tensor_view.h"
#include "proto/allocation_events.h"
#include "proto/caching_need.h"
#include "proto/grid.h"
#include "proto/state_layout.h"
#include "proto/text_table.h"

namespace terrace {
namespace {

constexpr TextTable::Column kRight = {.align = TextTable::Align::kRight};

// An enum value as listings write it: lower case; a value of a newer version as its number.
template <typename Enum>
std::string EnumText(Enum value, const std::string& (*name)(Enum)) {
  const std::string& text = name(value);
  return text.empty() ? absl::StrCat(static_cast<int>(value)) : absl::AsciiStrToLower(text);
}

std::string PhaseText(v1::Phase phase) {
  if (phase == v1::OPTIMIZER_STEP) return "optimizer";
  return phase == v1::PHASE_UNSPECIFIED ? "-" : EnumText(phase, &v1::Phase_Name<v1::Phase>);
}

template <typename Numbers>
std::string ShapeText(const Numbers& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ","), "]");
}

std::string IndexText(int32_t index) { return index < 0 ? "-" : absl::StrCat(index); }

std::string BufferName(const v1::Program& program, uint32_t id) {
  if (id >= static_cast<uint32_t>(program.buffers_size())) return absl::StrCat("?", id);
  return program.buffers(id).name();
}

char AccessLetter(v1::Access access) {
  switch (access) {
    case v1::READ:
      return 'r';
    case v1::WRITE:
      return 'w';
    case v1::UPDATE:
      return 'u';
    default:
      return '?';
  }
}

std::string OperandText(const v1::Program& program, const v1::Operand& operand) {
  if (operand.access() == v1::ACCESS_UNSPECIFIED) return "-";
  std::string text = absl::StrCat(std::string(1, AccessLetter(operand.access())), ":",
                                  BufferName(program, operand.buffer()));
  if (operand.offset() != 0) absl::StrAppend(&text, "+", operand.offset());
  return text;
}

int64_t BytesOf(const v1::Operand& operand) {
  if (!v1::DType_IsValid(operand.dtype()) || operand.dtype() == v1::DTYPE_UNSPECIFIED) return 0;
  int64_t bytes = kernels::SizeOf(static_cast<kernels::DType>(operand.dtype()));
  for (int64_t size : operand.shape()) bytes *= size;
  return bytes;
}

// "nvme_load 4 x 8.0 MiB"; of pieces of several sizes "to_host 3 pieces, 9.5 KiB".
std::string CopyText(const v1::Instruction& instruction) {
  const int pieces = instruction.operands_size() / 2;
  int64_t bytes = 0;
  bool alike = true;
  for (int to = 1; to < instruction.operands_size(); to += 2) {
    bytes += BytesOf(instruction.operands(to));
    alike = alike && BytesOf(instruction.operands(to)) == BytesOf(instruction.operands(1));
  }
  std::string text =
      absl::StrCat(EnumText(instruction.copy().kind(), &v1::CopyKind_Name<v1::CopyKind>), " ");
  if (pieces <= 1) return absl::StrCat(text, FormatBytes(bytes));
  if (alike) return absl::StrCat(text, pieces, " x ", FormatBytes(bytes / pieces));
  return absl::StrCat(text, pieces, " pieces, ", FormatBytes(bytes));
}

std::string OpText(const v1::Program& program, const v1::Instruction& instruction) {
  switch (instruction.kind_case()) {
    case v1::Instruction::kCompute:
      return instruction.compute().op();
    case v1::Instruction::kCollective: {
      const v1::CollectiveOp& op = instruction.collective();
      const bool known = op.group() < static_cast<uint32_t>(program.groups_size());
      return absl::StrCat(
          EnumText(op.kind(), &v1::CollectiveKind_Name<v1::CollectiveKind>), " ",
          known ? program.groups(op.group()).name() : absl::StrCat("?", op.group()));
    }
    case v1::Instruction::kTransfer: {
      const v1::TransferOp& op = instruction.transfer();
      const bool known = op.group() < static_cast<uint32_t>(program.groups_size());
      return absl::StrCat(
          EnumText(op.kind(), &v1::TransferKind_Name<v1::TransferKind>),
          op.kind() == v1::SEND ? " to stage " : " from stage ", op.peer_stage(), " ",
          known ? program.groups(op.group()).name() : absl::StrCat("?", op.group()));
    }
    case v1::Instruction::kInput:
      return EnumText(instruction.input().kind(), &v1::InputKind_Name<v1::InputKind>);
    case v1::Instruction::kOutput:
      return EnumText(instruction.output().kind(), &v1::OutputKind_Name<v1::OutputKind>);
    case v1::Instruction::kCopy:
      return CopyText(instruction);
    case v1::Instruction::KIND_NOT_SET:
      break;
  }
  return "?";
}

std::string OperandsText(const v1::Program& program, const v1::Instruction& instruction) {
  std::string text = absl::StrJoin(instruction.operands(), " ",
                                   [&program](std::string* out, const v1::Operand& operand) {
                                     out->append(OperandText(program, operand));
                                   });
  if (instruction.compute().workspace().access() != v1::ACCESS_UNSPECIFIED) {
    const v1::Operand& workspace = instruction.compute().workspace();
    absl::StrAppend(&text, " ws:", BufferName(program, workspace.buffer()));
    if (workspace.offset() != 0) absl::StrAppend(&text, "+", workspace.offset());
  }
  return text;
}

std::string WaitsText(const v1::Instruction& instruction) {
  if (instruction.waits_size() == 0) return "";
  return absl::StrCat("after ",
                      absl::StrJoin(instruction.waits(), " ", [](std::string* out, uint32_t id) {
                        absl::StrAppendFormat(out, "%04d", id);
                      }));
}

std::string StreamName(const v1::Program& program, uint32_t id) {
  if (id >= static_cast<uint32_t>(program.streams_size())) return absl::StrCat("?", id);
  return program.streams(id).name();
}

void PrintSequence(const v1::Program& program, const v1::Sequence& sequence, std::string* out) {
  absl::StrAppend(out, "\nsequence ", sequence.name(), "  ", sequence.instructions_size(),
                  " instructions\n");
  TextTable table({{}, {}, {}, kRight, kRight, {}, {.width_max = 64}, {}, {}});
  table.Add({"id", "stream", "phase", "layer", "mb", "op", "operands", "waits", "text"});
  for (const v1::Instruction& instruction : sequence.instructions()) {
    table.Add({absl::StrFormat("%04d", instruction.id()), StreamName(program, instruction.stream()),
               PhaseText(instruction.phase()), IndexText(instruction.layer()),
               IndexText(instruction.micro_batch()), OpText(program, instruction),
               OperandsText(program, instruction), WaitsText(instruction), instruction.text()});
  }
  table.AppendTo(out);
}

struct Uses {
  int64_t first = -1;
  int64_t last = -1;
};

// First and last instruction that names each buffer, in its own sequence.
std::vector<Uses> FindUses(const v1::Program& program) {
  std::vector<Uses> uses(program.buffers_size());
  const auto note = [&](const v1::Sequence& sequence, const v1::Operand& operand,
                        int64_t position) {
    if (operand.access() == v1::ACCESS_UNSPECIFIED || operand.buffer() >= uses.size()) return;
    if (program.buffers(operand.buffer()).sequence() != sequence.name()) return;
    Uses& use = uses[operand.buffer()];
    if (use.first < 0) use.first = position;
    use.last = position;
  };
  for (const v1::Sequence& sequence : program.sequences()) {
    for (int i = 0; i < sequence.instructions_size(); ++i) {
      const v1::Instruction& instruction = sequence.instructions(i);
      for (const v1::Operand& operand : instruction.operands()) note(sequence, operand, i);
      note(sequence, instruction.compute().workspace(), i);
    }
  }
  return uses;
}

std::string LifeText(const v1::Buffer& buffer, const Uses& uses) {
  if (buffer.lifetime() == v1::PERSISTENT) return "persistent";
  if (uses.first < 0) return absl::StrCat(buffer.sequence(), " never");
  return absl::StrFormat("%s %04d..%04d", buffer.sequence(), uses.first, uses.last);
}

void PrintBuffers(const v1::Program& program, std::string_view only_sequence, std::string* out) {
  const std::vector<Uses> uses = FindUses(program);
  TextTable table({kRight, {}, {}, {}, {}, kRight, {}, kRight, {}});
  table.Add({"id", "buffer", "class", "type", "shape", "arena", "offset", "bytes", "life"});
  for (int i = 0; i < program.buffers_size(); ++i) {
    const v1::Buffer& buffer = program.buffers(i);
    const bool of_other_sequence =
        buffer.lifetime() != v1::PERSISTENT && buffer.sequence() != only_sequence;
    if (!only_sequence.empty() && of_other_sequence) continue;
    table.Add({absl::StrCat(i), buffer.name(),
               EnumText(buffer.class_(), &v1::BufferClass_Name<v1::BufferClass>),
               EnumText(buffer.dtype(), &v1::DType_Name<v1::DType>), ShapeText(buffer.shape()),
               absl::StrCat(buffer.arena()),
               IsDynamic(program, buffer) ? "dynamic" : absl::StrFormat("0x%08x", buffer.offset()),
               absl::StrCat(buffer.bytes()), LifeText(buffer, uses[i])});
  }
  absl::StrAppend(out, "\nbuffers  ", program.buffers_size(), "\n");
  table.AppendTo(out);
}

// "pages     of 65536 bytes, from 0x0c000000 on: 12-15, 3, ...": of which pages of its memory the
// addresses behind an arena are.
void PrintPages(const v1::Arena& arena, std::string* out) {
  if (arena.aliases().empty()) return;
  std::vector<std::string> runs;
  for (const v1::PageRun& run : arena.aliases()) {
    runs.push_back(run.pages() == 1 ? absl::StrCat(run.page())
                                    : absl::StrCat(run.page(), "-", run.page() + run.pages() - 1));
  }
  absl::StrAppendFormat(out, "pages    of %d bytes, again from 0x%08x on: %s\n", arena.page_bytes(),
                        arena.bytes(), absl::StrJoin(runs, ", "));
}

void PrintArenas(const v1::Program& program, std::string* out) {
  for (const v1::Arena& arena : program.arenas()) {
    absl::StrAppendFormat(out, "arena %d   %s  %d bytes (%s)", arena.id(),
                          EnumText(arena.tier(), &v1::Tier_Name<v1::Tier>), arena.bytes(),
                          FormatBytes(arena.bytes()));
    const int64_t segments = arena.tier() == v1::DEVICE ? SegmentBytesNeeded(program) : 0;
    if (segments > 0) {
      absl::StrAppendFormat(out, " and %d bytes (%s) of segments of the caching allocator",
                            segments, FormatBytes(segments));
    }
    if (arena.lower_bound_bytes() > 0) {
      absl::StrAppendFormat(out, "  %.2f %% over the lower bound",
                            100.0 * (static_cast<double>(arena.bytes() + segments) /
                                         static_cast<double>(arena.lower_bound_bytes()) -
                                     1.0));
    }
    *out += "\n";
    PrintPages(arena, out);
  }
}

// "tensor 2 pipeline 4": the axes that have ranks.
void PrintGrid(const v1::Grid& grid, std::string* out) {
  std::string text;
  for (v1::Axis axis : {v1::TENSOR, v1::CONTEXT, v1::DATA_SHARD, v1::DATA_REPLICA, v1::PIPELINE}) {
    if (AxisSize(grid, axis) == 1) continue;
    absl::StrAppend(&text, " ", EnumText(axis, &v1::Axis_Name<v1::Axis>), " ",
                    AxisSize(grid, axis));
  }
  if (!text.empty()) absl::StrAppend(out, "grid     ", text, "\n");
}

void PrintGroups(const v1::Program& program, std::string* out) {
  TextTable table({{}, {.width_max = 24}, {.width_max = 60}, kRight});
  for (const v1::Group& group : program.groups()) {
    std::string axes = "over";
    for (int axis : group.axes()) {
      absl::StrAppend(&axes, " ", EnumText(static_cast<v1::Axis>(axis), &v1::Axis_Name<v1::Axis>));
    }
    if (group.stages_size() > 0) {
      absl::StrAppend(&axes, ", stages ", absl::StrJoin(group.stages(), " "));
    }
    if (group.tensor_block() > 0) absl::StrAppend(&axes, " in blocks of ", group.tensor_block());
    table.Add(
        {"group   ", group.name(), axes, absl::StrCat(GroupSize(program.grid(), group), " ranks")});
  }
  table.AppendTo(out);
}

// Which part of its tensor a range is, on the rank with tensor index 0.
std::string PartText(const v1::StateRange& range) {
  const bool whole = range.split() == v1::StateRange::WHOLE && range.row() == 0 &&
                     range.column() == 0 && range.rows() == RowsOf(range) &&
                     range.columns() == ColumnsOf(range);
  if (whole) return "all";
  std::string text = absl::StrCat("[", range.row(), "+", range.rows(), ",", range.column(), "+",
                                  range.columns(), "]");
  if (range.split() == v1::StateRange::WHOLE) return text;
  absl::StrAppend(&text, range.split() == v1::StateRange::BY_ROWS ? " by rows" : " by columns");
  if (range.split_block() > 1) absl::StrAppend(&text, " / ", range.split_block());
  return text;
}

// The weights; their moments lie in the same way in buffers of their own.
void PrintState(const v1::Program& program, std::string* out) {
  TextTable table({{.width_max = 60}, {}, {}, {}, kRight, {}});
  table.Add({"tensor", "shape", "part", "in", "shard", ""});
  int weights = 0;
  for (const v1::StateRange& range : program.state()) {
    if (range.kind() != v1::WEIGHT) continue;
    ++weights;
    std::string place = BufferName(program, range.buffer());
    if (range.offset() != 0) absl::StrAppend(&place, "+", range.offset());
    table.Add({range.tensor(), ShapeText(range.shape()), PartText(range), place,
               range.shard_elements() == 0 ? "" : absl::StrCat(range.shard_elements()),
               range.copy() ? "copy" : ""});
  }
  if (weights == 0) return;
  absl::StrAppend(out, "\nstate  ", weights, " ranges of weights, ", program.state_size(),
                  " with their moments\n");
  table.AppendTo(out);
}

std::string LimitText(int64_t bytes) { return bytes == 0 ? "none" : FormatBytes(bytes); }

void PrintHeader(const v1::Program& program, std::string* out) {
  int instructions = 0;
  for (const v1::Sequence& sequence : program.sequences())
    instructions += sequence.instructions_size();
  absl::StrAppend(out, "program ", program.job(), "  stage ", program.stage(), " of ",
                  program.stages(), "  ranks ", program.ranks(), "  threads ", program.threads(),
                  "  ", instructions, " instructions\n");
  PrintGrid(program.grid(), out);
  PrintArenas(program, out);
  absl::StrAppend(out, "outside   ", FormatBytes(program.external_bytes()), "  limit ",
                  LimitText(program.device_limit_bytes()), "\n");
  if (program.host_limit_bytes() > 0 || program.nvme_limit_bytes() > 0) {
    absl::StrAppend(out, "limits    host ", LimitText(program.host_limit_bytes()), "  nvme ",
                    LimitText(program.nvme_limit_bytes()), "\n");
  }
  absl::StrAppend(out, "streams  ");
  for (const v1::Stream& stream : program.streams()) absl::StrAppend(out, " ", stream.name());
  *out += "\n";
  PrintGroups(program, out);
}

}  // namespace

std::string FormatBytes(int64_t bytes) {
  static constexpr std::array<const char*, 5> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  const double magnitude = std::abs(static_cast<double>(bytes));
  if (magnitude < 1024) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  // 1023.95 would print as 1024.0.
  while (std::abs(value) >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string ProgramText(const v1::Program& program, const ProgramTextOptions& options) {
  std::string out;
  PrintHeader(program, &out);
  if (options.buffers) {
    PrintState(program, &out);
    PrintBuffers(program, options.sequence, &out);
  }
  for (const v1::Sequence& sequence : program.sequences()) {
    if (options.sequence.empty() || sequence.name() == options.sequence) {
      PrintSequence(program, sequence, &out);
    }
  }
  return out;
}

}  // namespace terrace
