// SPDX-License-Identifier: Apache-2.0
#include "client/memory_snapshot.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/memory_picture.h"
#include "client/pickle.h"
#include "proto/caching/segments.h"
#include "proto/drawing/svg.h"
#include "proto/program/allocation_events.h"
#include "proto/program/arena_pages.h"
#include "proto/program/caching_need.h"
#include "proto/program/tiers.h"
#include "proto/report/live_memory.h"

namespace terrace {
namespace {

// Addresses are of the viewer's own: one range an arena, exact in JavaScript's numbers.
constexpr int64_t kAddressesOfArena = int64_t{1} << 44;
constexpr int64_t kMicrosecondsOfInstruction = 10;  // list order as time

struct Life {
  const v1::Buffer* buffer = nullptr;
  int first = -1, last = -1;  // places in the list of what is executed; -1: persistent
  std::string made_by;
};

// What the caching allocator does with a buffer.
struct Change {
  int at = 0;  // instruction; as many as there are: the end
  AllocationEvent::Kind kind = AllocationEvent::kAllocate;
  Life life;
  int64_t address = 0;  // from the start of the device's
  uint32_t stream = 0;
  bool retired = false;  // a kFree of what was retired before
};

// Everything of one arena.
struct Device {
  const v1::Program* program = nullptr;
  const v1::Arena* arena = nullptr;
  std::vector<Life> lives;  // by offset
  // In caching mode, of the arena on the device.
  std::vector<CachedSegment> segments;
  bool expandable = false;      // they are
  std::vector<Change> changes;  // of one execution
};

// Segments lie behind anything that an arena could hold.
constexpr int64_t kSegmentsAt = kAddressesOfArena / 2;
int64_t AddressOf(const std::byte* block) {
  return kSegmentsAt + static_cast<int64_t>(reinterpret_cast<uintptr_t>(block));
}

// Index of the sequence; -1: there is none.
int TrainOf(const v1::Program& program) {
  for (int i = 0; i < program.sequences_size(); ++i) {
    if (program.sequences(i).name() == "train") return i;
  }
  return -1;
}

void Frame(const std::string& name, const std::string& file, int64_t line, Pickle* out) {
  out->BeginDict();
  out->String("name");
  out->String(name);
  out->String("filename");
  out->String(file);
  out->String("line");
  out->Int(line);
  out->EndDict();
}

void Frames(const Device& device, const Life& life, Pickle* out) {
  const v1::Buffer& buffer = *life.buffer;
  const std::string file =
      absl::StrCat("stage ", device.program->stage(), " ", TierWord(device.arena->tier()));
  out->String("frames");
  out->BeginList();
  Frame(absl::StrCat(buffer.name(), " (", ClassWord(buffer.class_()), ")"), file, buffer.id(), out);
  if (life.first >= 0) {
    Frame(life.made_by, "train", life.first, out);
  } else {
    Frame("persistent", "state", 0, out);
  }
  out->EndList();
}

void Field(const char* name, int64_t value, Pickle* out) {
  out->String(name);
  out->Int(value);
}
void Field(const char* name, const char* value, Pickle* out) {
  out->String(name);
  out->String(value);
}

void Block(int64_t address, int64_t bytes, const char* state, Pickle* out) {
  Field("address", address, out);
  Field("size", bytes, out);
  Field("requested_size", bytes, out);
  Field("state", state, out);
}

// At the end of the step only what is persistent is left, between free blocks.
void Segment(int64_t index, const Device& device, Pickle* out) {
  const int64_t base = (index + 1) * kAddressesOfArena;
  int64_t live = 0;
  for (const Life& life : device.lives) live += life.first < 0 ? life.buffer->bytes() : 0;
  out->BeginDict();
  Field("device", index, out);
  Field("address", base, out);
  // The viewer draws a block at its address: second addresses of pages are part of the segment.
  Field("total_size", AddressBytes(*device.arena), out);
  Field("allocated_size", live, out);
  Field("active_size", live, out);
  Field("requested_size", live, out);
  Field("stream", int64_t{0}, out);
  Field("segment_type", "large", out);
  out->String("segment_pool_id");
  out->Pair(0, 0);
  out->String("is_expandable");
  out->Bool(false);
  out->String("frames");
  out->BeginList();
  out->EndList();
  out->String("blocks");
  out->BeginList();
  int64_t end = 0;
  const auto gap = [&](int64_t until) {
    if (until <= end) return;
    out->BeginDict();
    Block(base + end, until - end, "inactive", out);
    out->String("frames");
    out->BeginList();
    out->EndList();
    out->EndDict();
  };
  for (const Life& life : device.lives) {
    if (life.first >= 0) continue;
    gap(life.buffer->offset());
    out->BeginDict();
    Block(base + life.buffer->offset(), life.buffer->bytes(), "active_allocated", out);
    Frames(device, life, out);
    out->EndDict();
    end = life.buffer->offset() + life.buffer->bytes();
  }
  gap(AddressBytes(*device.arena));
  out->EndList();
  out->EndDict();
}

// One of the caching allocator's, at the end of the step: nothing of it is held.
void FreeSegment(int64_t index, const CachedSegment& segment, bool expandable, Pickle* out) {
  const int64_t address = (index + 1) * kAddressesOfArena + AddressOf(segment.data);
  out->BeginDict();
  Field("device", index, out);
  Field("address", address, out);
  Field("total_size", segment.bytes, out);
  Field("allocated_size", int64_t{0}, out);
  Field("active_size", int64_t{0}, out);
  Field("requested_size", int64_t{0}, out);
  Field("stream", int64_t{segment.stream}, out);
  Field("segment_type", segment.pool == CachingPool::kLarge ? "large" : "small", out);
  out->String("segment_pool_id");
  out->Pair(0, 0);
  out->String("is_expandable");
  out->Bool(expandable);
  out->String("frames");
  out->BeginList();
  out->EndList();
  out->String("blocks");
  out->BeginList();
  for (const CachedBlock& block : segment.blocks) {
    out->BeginDict();
    Block(address + (block.data - segment.data), block.bytes, "inactive", out);
    out->String("frames");
    out->BeginList();
    out->EndList();
    out->EndDict();
  }
  out->EndList();
  out->EndDict();
}

void Event(const char* action, int64_t index, const Device& device, const Life& life, int at,
           int64_t address, uint32_t stream, Pickle* out) {
  out->BeginDict();
  Field("action", action, out);
  Field("addr", (index + 1) * kAddressesOfArena + address, out);
  Field("size", life.buffer->bytes(), out);
  Field("stream", int64_t{stream}, out);
  Field("time_us", at * kMicrosecondsOfInstruction, out);
  Frames(device, life, out);
  out->EndDict();
}

void CachingTrace(int64_t index, const Device& device, Pickle* out) {
  out->BeginList();
  for (const Change& change : device.changes) {
    const auto event = [&](const char* action) {
      Event(action, index, device, change.life, change.at, change.address, change.stream, out);
    };
    if (change.kind == AllocationEvent::kAllocate) event("alloc");
    if (change.kind == AllocationEvent::kRetire) event("free_requested");
    if (change.kind != AllocationEvent::kFree) continue;
    if (!change.retired) event("free_requested");
    event("free_completed");
  }
  out->EndList();
}

void Trace(int64_t index, const Device& device, Pickle* out) {
  struct End {
    int at;
    bool ends;
    const Life* life;
  };
  if (!device.changes.empty()) return CachingTrace(index, device, out);
  std::vector<End> changes;
  for (const Life& life : device.lives) {
    if (life.first < 0) continue;
    changes.push_back({life.first, false, &life});
    changes.push_back({life.last, true, &life});
  }
  // At one instruction everything begins before anything ends.
  std::stable_sort(changes.begin(), changes.end(), [](const End& a, const End& b) {
    return std::pair(a.at, a.ends) < std::pair(b.at, b.ends);
  });
  out->BeginList();
  for (const End& change : changes) {
    const auto event = [&](const char* action) {
      Event(action, index, device, *change.life, change.at, change.life->buffer->offset(), 0, out);
    };
    if (change.ends) {
      event("free_requested");
      event("free_completed");
    } else {
      event("alloc");
    }
  }
  out->EndList();
}

// REQUIRES: the sequence is "train".
Life LifeOf(const LiveMemory& memory, int sequence, uint32_t buffer) {
  Life life{.buffer = &memory.played().BufferOf(buffer), .made_by = ""};
  if (life.buffer->lifetime() == v1::PERSISTENT) return life;
  std::tie(life.first, life.last) = memory.Life(sequence, buffer);
  if (life.first >= 0)
    life.made_by = InstructionWords(memory.Executed(sequence, static_cast<uint32_t>(life.first)));
  return life;
}

// One more execution of "train" from the state that runs settle in.
absl::Status ReplayTrain(const LiveMemory& memory, int train, Device* device) {
  const v1::Program& program = *device->program;
  const std::vector<AllocationEvents> events = EventsOfSequences(program);
  CountedSegments source;
  const int64_t needed = SegmentBytesNeeded(program, events);
  BlockCache cache(&source, {.policy = CachingPolicyOf(program), .limit_bytes = needed});
  device->expandable = CachingPolicyOf(program).expandable;
  RETURN_IF_ERROR(SettleCache(program, events, &cache));
  std::vector<std::byte*> held(program.buffers_size(), nullptr);
  std::vector<bool> retired(program.buffers_size(), false);
  RETURN_IF_ERROR(
      ReplaySequence(program, program.sequences(train), events[train], &cache,
                     [&](uint32_t at, const AllocationEvent& event, const BlocksOfBuffers& blocks) {
                       if (event.kind == AllocationEvent::kAllocate)
                         held[event.buffer] = blocks[event.buffer];
                       device->changes.push_back({.at = static_cast<int>(at),
                                                  .kind = event.kind,
                                                  .life = LifeOf(memory, train, event.buffer),
                                                  .address = AddressOf(held[event.buffer]),
                                                  .stream = events[train].stream(event.buffer),
                                                  .retired = retired[event.buffer]});
                       retired[event.buffer] = event.kind == AllocationEvent::kRetire;
                     }));
  device->segments = cache.Snapshot();
  return absl::OkStatus();
}

absl::Status AddDevices(const v1::Program& program, std::vector<Device>* devices) {
  ASSIGN_OR_RETURN(const LiveMemory memory, LiveMemory::Create(&program));
  const int sequence = TrainOf(program);
  if (sequence < 0) return absl::InvalidArgumentError("the program has no train sequence");
  for (const v1::Arena& arena : program.arenas()) {
    Device& device = devices->emplace_back(Device{&program, &arena, {}});
    for (const v1::Buffer& buffer : memory.played().program().buffers()) {
      if (buffer.class_() == v1::EXTERNAL || buffer.arena() != arena.id()) continue;
      if (IsDynamic(program, buffer)) continue;
      Life life = LifeOf(memory, sequence, buffer.id());
      if (life.first >= 0 || buffer.lifetime() == v1::PERSISTENT)
        device.lives.push_back(std::move(life));
    }
    std::stable_sort(device.lives.begin(), device.lives.end(), [](const Life& a, const Life& b) {
      return a.buffer->offset() < b.buffer->offset();
    });
    if (UsesCaching(program) && arena.tier() == v1::DEVICE)
      RETURN_IF_ERROR(ReplayTrain(memory, sequence, &device));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> MemorySnapshot(std::span<const v1::Program> programs) {
  std::vector<Device> devices;
  for (const v1::Program& program : programs) RETURN_IF_ERROR(AddDevices(program, &devices));
  Pickle out;
  out.BeginDict();
  out.String("segments");
  out.BeginList();
  for (size_t i = 0; i < devices.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    Segment(index, devices[i], &out);
    for (const CachedSegment& segment : devices[i].segments)
      FreeSegment(index, segment, devices[i].expandable, &out);
  }
  out.EndList();
  out.String("device_traces");
  out.BeginList();
  for (size_t i = 0; i < devices.size(); ++i) Trace(static_cast<int64_t>(i), devices[i], &out);
  out.EndList();
  out.EndDict();
  return std::move(out).Finish();
}

}  // namespace terrace
