// SPDX-License-Identifier: Apache-2.0
#include "proto/check/order.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "base/status_macros.h"
#include "proto/check/instruction/refuse.h"
#include "proto/check/value/ranges.h"
#include "proto/check/value/state.h"
#include "proto/program/allocation_events.h"
#include "proto/program/arena_pages.h"
#include "proto/program/sequences.h"
#include "proto/program/tiers.h"

namespace terrace::check {
namespace {

// Where one buffer is touched.
struct Touch {
  int instruction = 0;
  const Access* access = nullptr;
};

// All touches of a sequence, by buffer and then in program order.
class Touches {
 public:
  Touches(const v1::Program& program, const CheckedSequence& sequence)
      : begin_(program.buffers_size() + 1, 0) {
    for (const CheckedInstruction& instruction : sequence.instructions) {
      for (const Access& access : instruction.accesses) ++begin_[access.buffer + 1];
    }
    std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
    all_.resize(begin_.back());
    std::vector<size_t> next(begin_.begin(), begin_.end() - 1);
    for (int i = 0; i < static_cast<int>(sequence.instructions.size()); ++i) {
      for (const Access& access : sequence.instructions[i].accesses) {
        all_[next[access.buffer]++] = {i, &access};
      }
    }
  }

  std::span<const Touch> operator[](int buffer) const {
    return std::span(all_).subspan(begin_[buffer], begin_[buffer + 1] - begin_[buffer]);
  }

 private:
  std::vector<size_t> begin_;  // by buffer; and the end
  std::vector<Touch> all_;
};

bool OnOneStream(std::span<const Touch> touches, const HappensBefore& order) {
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

Span SpanOf(std::span<const Touch> touches, const HappensBefore& order) {
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

// Finds, touch by touch of one buffer, the earlier ones that conflict. On each stream a touch knows
// some instructions to have finished, from the first on: only those behind need a look.
class Conflicts {
 public:
  explicit Conflicts(const HappensBefore& order) : order_(order), earlier_(order.streams()) {}

  void Clear() {
    for (std::vector<const Touch*>& touches : earlier_) touches.clear();
  }
  // The first in program order; null when there is none.
  const Touch* Find(const Touch& later) const {
    const Touch* first = nullptr;
    for (int s = 0; s < order_.streams(); ++s) {
      const int known = order_.Known(later.instruction, s);
      for (auto touch = earlier_[s].rbegin(); touch != earlier_[s].rend(); ++touch) {
        const Touch& earlier = **touch;
        if (order_.index(earlier.instruction) < known) break;
        if (!earlier.access->writes && !later.access->writes) continue;
        if (first != nullptr && first <= *touch) continue;
        if (Overlap(*earlier.access, *later.access)) first = *touch;
      }
    }
    return first;
  }
  void Add(const Touch& touch) { earlier_[order_.stream(touch.instruction)].push_back(&touch); }

 private:
  const HappensBefore& order_;
  std::vector<std::vector<const Touch*>> earlier_;  // by stream
};

}  // namespace

absl::Status CheckConflicts(const v1::Program& program, const CheckedSequence& sequence,
                            const HappensBefore& order) {
  const Touches by_buffer(program, sequence);
  Conflicts conflicts(order);
  for (int id = 0; id < program.buffers_size(); ++id) {
    const std::span<const Touch> touches = by_buffer[id];
    if (touches.empty() || OnOneStream(touches, order)) continue;
    conflicts.Clear();
    for (const Touch& later : touches) {
      const Touch* earlier = conflicts.Find(later);
      conflicts.Add(later);
      if (earlier == nullptr) continue;
      return Refuse(WhereIs(sequence, later.instruction), ": touches bytes of ",
                    BufferText(program, later.access->buffer), " that ",
                    WhereIs(sequence, earlier->instruction),
                    " touches too, one of them writes, and no stream or wait orders them");
    }
  }
  return absl::OkStatus();
}

namespace {

// A piece of memory that a buffer lies in.
struct Place {
  uint32_t arena = 0;
  ByteRange bytes;
  int buffer = 0;
};

std::vector<ArenaPages> PagesOf(const v1::Program& program) {
  return {program.arenas().begin(), program.arenas().end()};
}

// By arena and where they begin.
std::vector<Place> PlacesOf(const v1::Program& program) {
  const std::vector<ArenaPages> pages = PagesOf(program);
  std::vector<Place> places;
  places.reserve(program.buffers_size());
  for (int id = 0; id < program.buffers_size(); ++id) {
    const v1::Buffer& buffer = program.buffers(id);
    if (IsDynamic(program, buffer)) continue;
    pages[buffer.arena()].ForEachRange(buffer.offset(), buffer.offset() + buffer.bytes(),
                                       [&](int64_t begin, int64_t end) {
                                         places.push_back({buffer.arena(), {begin, end}, id});
                                       });
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    return std::tie(a.arena, a.bytes.begin, a.buffer) < std::tie(b.arena, b.bytes.begin, b.buffer);
  });
  return places;
}

}  // namespace

absl::Status CheckPersistentSpace(const v1::Program& program) {
  // In order of places, the end of the persistent buffer and of any buffer that reach furthest so
  // far.
  const Place* persistent = nullptr;
  const Place* any = nullptr;
  for (const std::vector<Place> places = PlacesOf(program); const Place& place : places) {
    const auto meets = [&](const Place* other) {
      return other != nullptr && other->arena == place.arena &&
             other->bytes.end > place.bytes.begin;
    };
    const auto reaches_further = [&](const Place* other) {
      return !meets(other) || place.bytes.end > other->bytes.end;
    };
    const bool persists = program.buffers(place.buffer).lifetime() == v1::PERSISTENT;
    const Place* const other = persists ? any : persistent;
    if (meets(other)) {
      return Refuse(BufferText(program, place.buffer), " overlaps ",
                    BufferText(program, other->buffer),
                    ", and a persistent buffer shares its bytes with no other");
    }
    if (reaches_further(any)) any = &place;
    if (persists && reaches_further(persistent)) persistent = &place;
  }
  return absl::OkStatus();
}

absl::Status CheckSharedSpace(const v1::Program& program, const CheckedSequence& sequence,
                              const HappensBefore& order) {
  const Touches touches(program, sequence);
  std::vector<Span> spans(program.buffers_size());
  std::vector<std::pair<int, int>> by_access;  // first instruction, id
  for (int id = 0; id < program.buffers_size(); ++id) {
    const v1::Buffer& buffer = program.buffers(id);
    if (touches[id].empty() || buffer.lifetime() != v1::STEP || IsDynamic(program, buffer))
      continue;
    spans[id] = SpanOf(touches[id], order);
    by_access.emplace_back(touches[id][0].instruction, id);
  }
  std::sort(by_access.begin(), by_access.end());
  // Each byte of an arena's memory remembers its latest owner. It is enough to compare with that
  // one: it came after all earlier.
  const std::vector<ArenaPages> pages = PagesOf(program);
  std::vector<ByteMap> owners(program.arenas_size());
  for (const std::pair<int, int>& access : by_access) {
    const int first = access.first, id = access.second;
    const v1::Buffer& buffer = program.buffers(id);
    ByteMap& owner_of = owners[buffer.arena()];
    int clash = ByteMap::kNone;
    // Each piece is its own before the next is looked at: no two may be the same bytes.
    pages[buffer.arena()].ForEachRange(
        buffer.offset(), buffer.offset() + buffer.bytes(), [&](int64_t begin, int64_t end) {
          owner_of.ForEach({begin, end}, [&](const ByteRange&, int owner) {
            if (owner == ByteMap::kNone) return;
            if (owner == id || !AllBefore(spans[owner], spans[id])) clash = owner;
          });
          owner_of.Set({begin, end}, id);
        });
    if (clash == id) {
      return Refuse(BufferText(program, id), " lies twice in one page of arena ", buffer.arena());
    }
    if (clash != ByteMap::kNone) {
      return Refuse(WhereIs(sequence, first), ": ", BufferText(program, id), " shares bytes with ",
                    BufferText(program, clash), ", whose last access ",
                    WhereIs(sequence, touches[clash].back().instruction),
                    " is not ordered before it by streams and waits");
    }
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
  // Zeros until texts are there: which rows an op may look at, its spans say.
  for (const v1::Buffer& buffer : program.buffers()) {
    if (buffer.class_() == v1::KEY_VALUE_CACHE)
      written[buffer.id()].Add({.row_bytes = buffer.bytes()});
  }
  std::vector<ByteSet> restored = written;
  for (const CheckedSequence& sequence : sequences) {
    if (sequence.sequence->name() != "restore") continue;
    RETURN_IF_ERROR(CheckSequenceReads(program, sequence, &restored));
  }
  for (const CheckedSequence& sequence : sequences) {
    if (sequence.sequence->name() == "restore") continue;
    std::vector<ByteSet> own = restored;
    RETURN_IF_ERROR(CheckSequenceReads(program, sequence, &own));
  }
  return absl::OkStatus();
}

}  // namespace terrace::check
