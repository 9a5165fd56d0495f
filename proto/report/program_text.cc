// SPDX-License-Identifier: Apache-2.0
#include "proto/report/program_text.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/text/number_format.h"
#include "base/text/text_table.h"
#include "proto/program/allocation_events.h"
#include "proto/program/caching_need.h"
#include "proto/program/grid.h"
#include "proto/program/loops.h"
#include "proto/program/state_layout.h"
#include "proto/report/listing_words.h"
#include "proto/report/sequence_text.h"

namespace terrace {
namespace {

constexpr TextTable::Column kRight = {.align = TextTable::Align::kRight};

template <typename Numbers>
std::string ShapeText(const Numbers& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ","), "]");
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
    // In a loop an operand touches all of its slots sooner or later.
    const int64_t end = int64_t{operand.buffer()} + std::max<int64_t>(1, operand.slots());
    for (int64_t id = operand.buffer(); id < std::min<int64_t>(end, program.buffers_size()); ++id) {
      Uses& use = uses[id];
      if (use.first < 0) use.first = position;
      use.last = position;
    }
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
    if (group.shard_block() > 0) absl::StrAppend(&axes, " in blocks of ", group.shard_block());
    if (group.shard_stride() > 0)
      absl::StrAppend(&axes, " that are ", group.shard_stride(), " apart");
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
  int64_t instructions = 0, executed = 0;
  for (const v1::Sequence& sequence : program.sequences()) {
    instructions += sequence.instructions_size();
    executed += PlayedInstructions(sequence);
  }
  absl::StrAppend(out, "program ", program.job(), "  stage ", program.stage(), " of ",
                  program.stages(), "  ranks ", program.ranks(), "  threads ", program.threads(),
                  "  ", CountText(instructions, executed), "\n");
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

std::string ProgramText(const v1::Program& program, const ProgramTextOptions& options) {
  std::string out;
  PrintHeader(program, &out);
  if (options.buffers) {
    PrintState(program, &out);
    PrintBuffers(program, options.sequence, &out);
  }
  for (const v1::Sequence& sequence : program.sequences()) {
    if (options.sequence.empty() || sequence.name() == options.sequence) {
      AppendSequence(program, sequence, &out);
    }
  }
  return out;
}

}  // namespace terrace
