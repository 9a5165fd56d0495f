// SPDX-License-Identifier: Apache-2.0
#include "proto/report/sequence_text.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/text/number_format.h"
#include "base/text/text_table.h"
#include "kernels/tensor_view.h"
#include "proto/program/loops.h"
#include "proto/report/listing_words.h"

namespace terrace {
namespace {

constexpr TextTable::Column kRight = {.align = TextTable::Align::kRight};

std::string PhaseText(v1::Phase phase) {
  if (phase == v1::OPTIMIZER_STEP) return "optimizer";
  return phase == v1::PHASE_UNSPECIFIED ? "-" : EnumText(phase, &v1::Phase_Name<v1::Phase>);
}

std::string IndexText(int32_t index) { return index < 0 ? "-" : absl::StrCat(index); }

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

std::string StreamName(const v1::Program& program, uint32_t id) {
  if (id >= static_cast<uint32_t>(program.streams_size())) return absl::StrCat("?", id);
  return program.streams(id).name();
}

// Buffers that hold the values of a loop in turn are called what their names begin and end with.
std::string NameOfSlots(const v1::Program& program, const v1::Operand& operand) {
  const int64_t end = int64_t{operand.buffer()} + operand.slots();
  if (end > program.buffers_size()) return absl::StrCat("?", operand.buffer());
  const std::string& name = program.buffers(static_cast<int>(operand.buffer())).name();
  size_t head = name.size(), tail = name.size();
  for (int64_t id = operand.buffer() + 1; id < end; ++id) {
    const std::string& other = program.buffers(static_cast<int>(id)).name();
    const size_t most = std::min(name.size(), other.size());
    head = std::min(head, most);
    tail = std::min(tail, most);
    for (size_t k = 0; k < head; ++k) {
      if (name[k] != other[k]) head = k;
    }
    for (size_t k = 0; k < tail; ++k) {
      if (name[name.size() - 1 - k] != other[other.size() - 1 - k]) tail = k;
    }
  }
  if (head == name.size()) return name;
  tail = std::min(tail, name.size() - head);
  const std::string end_of_name = name.substr(name.size() - tail);
  std::string both = name.substr(0, head);
  while (!both.empty() && absl::StrContains(".#@_", both.back())) both.pop_back();
  both += end_of_name;
  return both.empty() ? name : both;
}

// "i", "i+2", "2i-1": what is `first` in iteration 0 and `step` more in each further one.
std::string LinearText(int64_t step, int64_t first) {
  if (step == 0) return absl::StrCat(first);
  std::string text = step == 1 ? "i" : absl::StrCat(step, "i");
  if (first != 0) absl::StrAppend(&text, first > 0 ? "+" : "", first);
  return text;
}

// The lines of a sequence. What lies in a loop is written with i, the iteration.
class Lines {
 public:
  Lines(const v1::Program& program, const v1::Sequence& sequence)
      : program_(program), sequence_(sequence) {
    if (LoopsFit(sequence)) index_.emplace(sequence);
  }

  void AppendTo(std::string* out) const {
    TextTable table({{.width_max = 6}, {}, {}, kRight, kRight, {}, {.width_max = 64}, {}, {}});
    table.Add({"id", "stream", "phase", "layer", "mb", "op", "operands", "waits", "text"});
    for (int i = 0; i < sequence_.instructions_size(); ++i) {
      const v1::Loop* loop = LoopOf(i);
      if (loop != nullptr && loop->first() == static_cast<uint32_t>(i))
        table.Add({LoopText(*loop)});
      Add(i, &table);
      if (loop != nullptr && loop->first() + loop->count() == static_cast<uint32_t>(i) + 1)
        table.Add({"end of loop"});
    }
    table.AppendTo(out);
  }

 private:
  const v1::Loop* LoopOf(int i) const {
    const int loop = index_.has_value() ? index_->LoopOf(i) : kNoLoop;
    return loop == kNoLoop ? nullptr : &sequence_.loops(loop);
  }

  // "loop 510 times, micro-batches 1 to 510"; where several pass in an iteration, "2 an iteration".
  std::string LoopText(const v1::Loop& loop) const {
    std::string text = absl::StrCat("loop ", loop.trips(), loop.trips() == 1 ? " time" : " times");
    int64_t first = -1, last = -1;
    for (uint32_t k = 0; k < loop.count(); ++k) {
      const int64_t one = sequence_.instructions(static_cast<int>(loop.first() + k)).micro_batch();
      if (one < 0) continue;
      first = first < 0 ? one : std::min(first, one);
      last = std::max(last, one);
    }
    if (first < 0) return text;
    last += (int64_t{loop.trips()} - 1) * loop.micro_batches();
    absl::StrAppend(&text, first == last ? ", micro-batch " : ", micro-batches ", first);
    if (first != last) absl::StrAppend(&text, " to ", last);
    if (loop.micro_batches() > 1)
      absl::StrAppend(&text, ", ", loop.micro_batches(), " an iteration");
    return text;
  }

  void Add(int i, TextTable* table) const {
    const v1::Instruction& instruction = sequence_.instructions(i);
    table->Add({absl::StrFormat("%04d", instruction.id()),
                StreamName(program_, instruction.stream()), PhaseText(instruction.phase()),
                IndexText(instruction.layer()), MicroBatchText(i), OpText(program_, instruction),
                OperandsText(i), WaitsText(i), instruction.text()});
  }

  std::string MicroBatchText(int i) const {
    const int32_t micro_batch = sequence_.instructions(i).micro_batch();
    const v1::Loop* loop = LoopOf(i);
    if (loop == nullptr || micro_batch < 0) return IndexText(micro_batch);
    return LinearText(loop->micro_batches(), micro_batch);
  }

  // "weights.layer0+3072", "stats+16i+32", "mb.layer0.x[i+1]".
  std::string PlaceText(int i, const v1::Operand& operand) const {
    std::string text = BufferName(program_, operand.buffer());
    if (operand.slots() > 0) {
      const bool inside = LoopOf(i) != nullptr;
      const int64_t value =
          inside || !index_.has_value() ? int64_t{operand.slot()} : index_->ValueOf(operand, i, 0);
      text =
          absl::StrCat(NameOfSlots(program_, operand), "[", LinearText(inside ? 1 : 0, value), "]");
    }
    const bool moves = LoopOf(i) != nullptr && operand.offset_step() != 0;
    if (moves) absl::StrAppend(&text, "+", LinearText(operand.offset_step(), operand.offset()));
    if (!moves && operand.offset() != 0) absl::StrAppend(&text, "+", operand.offset());
    return text;
  }

  std::string OperandsText(int i) const {
    const v1::Instruction& instruction = sequence_.instructions(i);
    std::string text =
        absl::StrJoin(instruction.operands(), " ", [&](std::string* out, const auto& operand) {
          if (operand.access() == v1::ACCESS_UNSPECIFIED) {
            out->append("-");
          } else {
            absl::StrAppend(out, std::string(1, AccessLetter(operand.access())), ":",
                            PlaceText(i, operand));
          }
        });
    if (instruction.compute().workspace().access() != v1::ACCESS_UNSPECIFIED)
      absl::StrAppend(&text, " ws:", PlaceText(i, instruction.compute().workspace()));
    return text;
  }

  // "after 0041 0040", and of earlier iterations ", 0042 of the iteration before".
  std::string WaitsText(int i) const {
    const v1::Instruction& instruction = sequence_.instructions(i);
    std::string text = absl::StrJoin(instruction.waits(), " ", [](std::string* out, uint32_t id) {
      absl::StrAppendFormat(out, "%04d", id);
    });
    const char* last = LoopOf(i) == nullptr ? " the last" : "";
    for (const v1::BackWait& wait : instruction.back_waits()) {
      absl::StrAppendFormat(&text, "%s%04d of ", text.empty() ? "" : ", ", wait.instruction());
      if (wait.iterations() == 1) {
        absl::StrAppend(&text, "the iteration before", last);
      } else {
        absl::StrAppend(&text, wait.iterations(), " iterations before", last);
      }
    }
    return text.empty() ? "" : absl::StrCat("after ", text);
  }

  const v1::Program& program_;
  const v1::Sequence& sequence_;
  std::optional<LoopIndex>
      index_;  // nothing: loops that do not fit the sequence, and are not shown
};

}  // namespace

std::string CountText(int64_t instructions, int64_t executed) {
  std::string text = absl::StrCat(instructions, " instructions");
  if (executed != instructions) absl::StrAppend(&text, ", ", Grouped(executed), " executed");
  return text;
}

void AppendSequence(const v1::Program& program, const v1::Sequence& sequence, std::string* out) {
  absl::StrAppend(out, "\nsequence ", sequence.name(), "  ",
                  CountText(sequence.instructions_size(), PlayedInstructions(sequence)), "\n");
  Lines(program, sequence).AppendTo(out);
}

}  // namespace terrace
