// SPDX-License-Identifier: Apache-2.0
#include "proto/check/order.h"

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>
#include <utility>

#include "base/status_macros.h"
#include "proto/allocation_events.h"
#include "proto/check/ranges.h"
#include "proto/check/refuse.h"
#include "proto/check/state.h"
#include "proto/sequences.h"
#include "proto/tiers.h"

namespace terrace::check {
namespace {

// Where one buffer is touched.
struct Touch {
  int instruction = 0;
  const Access* access = nullptr;
};

std::vector<std::vector<Touch>> TouchesByBuffer(const v1::Program& program,
                                                const CheckedSequence& sequence) {
  std::vector<std::vector<Touch>> touches(program.buffers_size());
  for (int i = 0; i < static_cast<int>(sequence.instructions.size()); ++i) {
    for (const Access& access : sequence.instructions[i].accesses) {
      touches[access.buffer].push_back({i, &access});
    }
  }
  return touches;
}

bool OnOneStream(const std::vector<Touch>& touches, const HappensBefore& order) {
  return std::all_of(touches.begin(), touches.end(), [&](const Touch& touch) {
    return order.stream(touch.instruction) == order.stream(touches[0].instruction);
  });
}

std::string WhereIs(const CheckedSequence& sequence, int i) {
  return Where(*sequence.sequence, sequence.sequence->instructions(i));
}

Rows RowsOf(const Access& access) {
  return {access.offset, access.rows, access.row_bytes, access.stride_bytes};
}

// All accesses of one buffer, as far as order is concerned.
struct Span {
  std::vector<int> last;  // by stream: index of the last access there; -1: none
  std::vector<int>
      known;  // by stream: how many of its instructions every access knows to have finished
};

Span SpanOf(const std::vector<Touch>& touches, const HappensBefore& order) {
  Span span;
  span.last.assign(order.streams(), -1);
  span.known.assign(order.streams(), std::numeric_limits<int>::max());
  for (const Touch& touch : touches) {
    int& last = span.last[order.stream(touch.instruction)];
    last = std::max(last, order.index(touch.instruction));
    for (int s = 0; s < order.streams(); ++s) {
      // An instruction is not before itself.
      const bool own = s == order.stream(touch.instruction);
      const int known = own ? order.index(touch.instruction) : order.Known(touch.instruction, s);
      span.known[s] = std::min(span.known[s], known);
    }
  }
  return span;
}

bool AllBefore(const Span& a, const Span& b) {
  for (size_t s = 0; s < a.last.size(); ++s) {
    if (a.last[s] >= b.known[s]) return false;
  }
  return true;
}

}  // namespace

HappensBefore::HappensBefore(const v1::Program& program, const v1::Sequence& sequence)
    : streams_(program.streams_size()) {
  const size_t count = sequence.instructions_size();
  stream_.resize(count);
  index_.resize(count);
  clocks_.assign(count * streams_, 0);
  std::vector<int> last(streams_, -1);  // instruction of each stream
  std::vector<int> length(streams_, 0);
  const auto join = [this](int* clock, int other) {
    for (int s = 0; s < streams_; ++s) clock[s] = std::max(clock[s], Known(other, s));
  };
  for (int i = 0; i < static_cast<int>(count); ++i) {
    const v1::Instruction& instruction = sequence.instructions(i);
    const int stream = static_cast<int>(instruction.stream());
    int* clock = &clocks_[static_cast<size_t>(i) * streams_];
    if (last[stream] >= 0) join(clock, last[stream]);
    for (uint32_t wait : instruction.waits()) join(clock, static_cast<int>(wait));
    stream_[i] = stream;
    index_[i] = length[stream]++;
    clock[stream] = length[stream];
    last[stream] = i;
  }
}

absl::Status CheckConflicts(const v1::Program& program, const CheckedSequence& sequence,
                            const HappensBefore& order) {
  const std::vector<std::vector<Touch>> by_buffer = TouchesByBuffer(program, sequence);
  for (const std::vector<Touch>& touches : by_buffer) {
    if (touches.empty() || OnOneStream(touches, order)) continue;
    for (size_t b = 1; b < touches.size(); ++b) {
      for (size_t a = 0; a < b; ++a) {
        const Touch& earlier = touches[a];
        const Touch& later = touches[b];
        if (!earlier.access->writes && !later.access->writes) continue;
        if (earlier.instruction == later.instruction) continue;
        if (order.Ordered(earlier.instruction, later.instruction)) continue;
        if (!Overlap(*earlier.access, *later.access)) continue;
        return Refuse(WhereIs(sequence, later.instruction), ": touches bytes of ",
                      BufferText(program, later.access->buffer), " that ",
                      WhereIs(sequence, earlier.instruction),
                      " touches too, one of them writes, and no stream or wait orders them");
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPersistentSpace(const v1::Program& program) {
  std::vector<int> ids(program.buffers_size());
  for (int i = 0; i < program.buffers_size(); ++i) ids[i] = i;
  std::sort(ids.begin(), ids.end(), [&](int a, int b) {
    const v1::Buffer& x = program.buffers(a);
    const v1::Buffer& y = program.buffers(b);
    return std::tuple(x.arena(), x.offset(), a) < std::tuple(y.arena(), y.offset(), b);
  });
  // In order of offset, the end of the persistent buffer and of any buffer that reach furthest so
  // far.
  int persistent = -1, any = -1;
  const auto end = [&](int id) {
    return program.buffers(id).offset() + program.buffers(id).bytes();
  };
  for (int id : ids) {
    const v1::Buffer& buffer = program.buffers(id);
    if (IsDynamic(program, buffer)) continue;
    const auto meets = [&](int other) {
      return other >= 0 && program.buffers(other).arena() == buffer.arena() &&
             end(other) > buffer.offset();
    };
    const int other = buffer.lifetime() == v1::PERSISTENT ? any : persistent;
    if (meets(other)) {
      return Refuse(BufferText(program, id), " overlaps ", BufferText(program, other),
                    ", and a persistent buffer shares its bytes with no other");
    }
    if (!meets(any) || end(id) > end(any)) any = id;
    if (buffer.lifetime() == v1::PERSISTENT && (!meets(persistent) || end(id) > end(persistent)))
      persistent = id;
  }
  return absl::OkStatus();
}

absl::Status CheckSharedSpace(const v1::Program& program, const CheckedSequence& sequence,
                              const HappensBefore& order) {
  const std::vector<std::vector<Touch>> touches = TouchesByBuffer(program, sequence);
  std::vector<Span> spans(touches.size());
  std::vector<int> ids;  // in order of first access
  for (int id = 0; id < program.buffers_size(); ++id) {
    const v1::Buffer& buffer = program.buffers(id);
    if (touches[id].empty() || buffer.lifetime() != v1::STEP || IsDynamic(program, buffer))
      continue;
    spans[id] = SpanOf(touches[id], order);
    ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end(), [&](int a, int b) {
    return std::pair(touches[a][0].instruction, a) < std::pair(touches[b][0].instruction, b);
  });
  // Each byte of an arena remembers its latest owner. It is enough to compare with that one: it
  // came after all earlier.
  std::vector<ByteMap> owners(program.arenas_size());
  for (int id : ids) {
    const v1::Buffer& buffer = program.buffers(id);
    const ByteRange bytes = {buffer.offset(), buffer.offset() + buffer.bytes()};
    int clash = ByteMap::kNone;
    owners[buffer.arena()].ForEach(bytes, [&](const ByteRange&, int owner) {
      if (owner != ByteMap::kNone && !AllBefore(spans[owner], spans[id])) clash = owner;
    });
    if (clash != ByteMap::kNone) {
      return Refuse(WhereIs(sequence, touches[id][0].instruction), ": ", BufferText(program, id),
                    " shares bytes with ", BufferText(program, clash), ", whose last access ",
                    WhereIs(sequence, touches[clash].back().instruction),
                    " is not ordered before it by streams and waits");
    }
    owners[buffer.arena()].Set(bytes, id);
  }
  return absl::OkStatus();
}

namespace {

// Copies to and from NVMe move whole blocks: behind what they are for there may be up to a block
// that nobody wrote. That no computation takes it for content is the business of flow.h.
bool IsRestOfBlock(const v1::Instruction& instruction, const Access& access, int64_t byte) {
  const v1::CopyKind kind = instruction.copy().kind();
  return (kind == v1::NVME_LOAD || kind == v1::NVME_STORE) && byte > access.end() - kNvmeAlignment;
}

// What a sequence reads was written; `written` then holds what it wrote.
absl::Status CheckSequenceReads(const v1::Program& program, const CheckedSequence& sequence,
                                std::vector<ByteSet>* written) {
  for (int i = 0; i < static_cast<int>(sequence.instructions.size()); ++i) {
    const std::vector<Access>& accesses = sequence.instructions[i].accesses;
    for (const Access& access : accesses) {
      if (!access.reads) continue;
      const int64_t missing = (*written)[access.buffer].FirstMissing(RowsOf(access));
      const v1::Instruction& instruction = sequence.sequence->instructions(i);
      if (missing >= 0 && !IsRestOfBlock(instruction, access, missing)) {
        return Refuse(WhereIs(sequence, i), ": operand ", access.operand, " reads byte ", missing,
                      " of ", BufferText(program, access.buffer), " before anything wrote it");
      }
    }
    for (const Access& access : accesses) {
      if (access.writes && access.operand != kWorkspaceOperand)
        (*written)[access.buffer].Add(RowsOf(access));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckReads(const v1::Program& program, const std::vector<CheckedSequence>& sequences) {
  std::vector<ByteSet> written(program.buffers_size());
  for (const v1::StateRange& range : program.state()) {
    const v1::Buffer& buffer = program.buffers(static_cast<int>(range.buffer()));
    // Off the device state is moved in pieces that include the zeros between its tensors.
    const bool whole = TierOf(program, buffer) != v1::DEVICE;
    written[range.buffer()].Add(whole ? Rows{.row_bytes = buffer.bytes()} : FilledBytes(range));
  }
  for (const v1::RopeTable& table : program.rope_tables()) {
    written[table.buffer()].Add({.row_bytes = program.buffers(table.buffer()).bytes()});
  }
  std::vector<ByteSet> restored = written;
  for (const CheckedSequence& sequence : sequences) {
    if (sequence.sequence->name() != "restore") continue;
    RETURN_IF_ERROR(CheckSequenceReads(program, sequence, &restored));
  }
  for (const CheckedSequence& sequence : sequences) {
    if (sequence.sequence->name() == "restore") continue;
    std::vector<ByteSet> own = IsTrain(sequence.sequence->name()) ? written : restored;
    RETURN_IF_ERROR(CheckSequenceReads(program, sequence, &own));
  }
  return absl::OkStatus();
}

}  // namespace terrace::check
