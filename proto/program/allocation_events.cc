// SPDX-License-Identifier: Apache-2.0
#include "proto/program/allocation_events.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/program/happens_before.h"
#include "proto/program/tiers.h"

namespace terrace {
namespace {

// Instructions that use each buffer, in list order, once each.
std::vector<std::vector<int>> UsesOfDynamic(const v1::Program& program,
                                            const v1::Sequence& sequence) {
  std::vector<std::vector<int>> uses(program.buffers_size());
  for (int i = 0; i < sequence.instructions_size(); ++i) {
    const auto use = [&](const v1::Operand& operand) {
      if (operand.access() == v1::ACCESS_UNSPECIFIED) return;
      const auto id = static_cast<int>(operand.buffer());
      if (!IsDynamic(program, program.buffers(id))) return;
      if (uses[id].empty() || uses[id].back() != i) uses[id].push_back(i);
    };
    for (const v1::Operand& operand : sequence.instructions(i).operands()) use(operand);
    use(sequence.instructions(i).compute().workspace());
  }
  return uses;
}

// Where within an instruction's launch an event stands: what is over before it, what it needs, what
// ends with it.
enum Moment { kBefore, kNeeded, kAfter };

struct TimedEvent {
  uint32_t instruction = 0;
  Moment moment = kNeeded;
  AllocationEvent event;
  auto Key() const { return std::tuple(instruction, moment, event.buffer); }
};

class Planner {
 public:
  explicit Planner(const v1::Program& program, const v1::Sequence& sequence)
      : order_(program, sequence), end_(static_cast<uint32_t>(sequence.instructions_size())) {
    by_stream_.resize(program.streams_size());
    for (int i = 0; i < sequence.instructions_size(); ++i)
      by_stream_[order_.stream(i)].push_back(i);
  }

  void Add(uint32_t buffer, const std::vector<int>& uses) {
    const int first = uses.front(), last = uses.back();
    const int own = order_.stream(first);
    // The last use on each stream; -1: none.
    std::vector<int> last_on(by_stream_.size(), -1);
    bool ordered = true;
    for (const int use : uses) {
      last_on[order_.stream(use)] = use;
      ordered &= use == first || order_.Ordered(first, use);
    }
    if (!ordered) {
      Put(0, kBefore, AllocationEvent::kAllocate, buffer);
      Put(end_, kAfter, AllocationEvent::kFree, buffer);
      return;
    }
    Put(static_cast<uint32_t>(first), kNeeded, AllocationEvent::kAllocate, buffer);
    const int over = FirstThatKnows(last_on, own);
    if (over == last) {
      Put(static_cast<uint32_t>(last), kAfter, AllocationEvent::kFree, buffer);
      return;
    }
    Put(static_cast<uint32_t>(last), kAfter, AllocationEvent::kRetire, buffer);
    if (over < 0) {
      Put(end_, kAfter, AllocationEvent::kFree, buffer);
    } else {
      Put(static_cast<uint32_t>(over), kBefore, AllocationEvent::kFree, buffer);
    }
  }

  std::vector<TimedEvent> Take() {
    std::sort(events_.begin(), events_.end(),
              [](const TimedEvent& a, const TimedEvent& b) { return a.Key() < b.Key(); });
    return std::move(events_);
  }

 private:
  void Put(uint32_t instruction, Moment moment, AllocationEvent::Kind kind, uint32_t buffer) {
    events_.push_back({instruction, moment, {kind, buffer}});
  }

  // The first instruction of stream `own`, from its last use on, that begins after all uses on
  // other streams have ended; -1: none. What a stream knows only grows, so it can be searched.
  int FirstThatKnows(const std::vector<int>& last_on, int own) const {
    const std::vector<int>& stream = by_stream_[own];
    const auto found = std::partition_point(
        stream.begin() + order_.index(last_on[own]), stream.end(), [&](int candidate) {
          for (int s = 0; s < static_cast<int>(last_on.size()); ++s) {
            if (s == own || last_on[s] < 0) continue;
            if (order_.Known(candidate, s) <= order_.index(last_on[s])) return true;
          }
          return false;
        });
    return found == stream.end() ? -1 : *found;
  }

  const HappensBefore order_;
  const uint32_t end_;
  std::vector<std::vector<int>> by_stream_;  // instructions
  std::vector<TimedEvent> events_;
};

}  // namespace

bool UsesCaching(const v1::Program& program) {
  return program.allocator() == "caching" || program.allocator() == "expandable";
}

CachingPolicy CachingPolicyOf(const v1::Program& program) {
  return {.expandable = program.allocator() == "expandable"};
}

bool IsDynamic(const v1::Program& program, const v1::Buffer& buffer) {
  return UsesCaching(program) && buffer.lifetime() == v1::STEP &&
         TierOf(program, buffer) == v1::DEVICE;
}

AllocationEvents::AllocationEvents(const v1::Program& program, const v1::Sequence& sequence)
    : streams_(program.buffers_size(), 0) {
  Planner planner(program, sequence);
  const std::vector<std::vector<int>> uses = UsesOfDynamic(program, sequence);
  for (uint32_t buffer = 0; buffer < uses.size(); ++buffer) {
    if (uses[buffer].empty()) continue;
    streams_[buffer] = sequence.instructions(uses[buffer].front()).stream();
    planner.Add(buffer, uses[buffer]);
  }
  const std::vector<TimedEvent> timed = planner.Take();
  const auto count = static_cast<uint32_t>(sequence.instructions_size());
  for (uint32_t i = 0; i <= count; ++i) {
    begin_.push_back(events_.size());
    while (events_.size() < timed.size() && timed[events_.size()].instruction == i)
      events_.push_back(timed[events_.size()].event);
  }
  begin_.push_back(events_.size());
}

absl::Status ApplyEvent(const v1::Program& program, const AllocationEvents& events,
                        const AllocationEvent& event, BlockCache* cache, BlocksOfBuffers* blocks) {
  std::byte*& block = (*blocks)[event.buffer];
  if (event.kind == AllocationEvent::kRetire) return cache->Retire(block);
  if (event.kind == AllocationEvent::kFree) return cache->Free(std::exchange(block, nullptr));
  const v1::Buffer& buffer = program.buffers(static_cast<int>(event.buffer));
  const auto data = cache->Allocate(buffer.bytes(), events.stream(event.buffer));
  if (data.ok()) {
    block = *data;
    return absl::OkStatus();
  }
  return absl::Status(data.status().code(),
                      absl::StrCat("buffer '", buffer.name(), "': ", data.status().message()));
}

absl::Status AtInstruction(const absl::Status& status, const v1::Instruction& instruction) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("instruction ", instruction.id(), " (",
                                                  instruction.text(), "): ", status.message()));
}

absl::Status ReplaySequence(const v1::Program& program, const v1::Sequence& sequence,
                            const AllocationEvents& events, BlockCache* cache,
                            const AfterEvent& look) {
  BlocksOfBuffers blocks(program.buffers_size(), nullptr);
  absl::Status status;
  for (uint32_t i = 0; i <= events.instructions() && status.ok(); ++i) {
    for (const AllocationEvent& event : events.At(i)) {
      status = ApplyEvent(program, events, event, cache, &blocks);
      if (!status.ok()) break;
      if (look) look(i, event, blocks);
    }
    if (i < events.instructions())
      status = AtInstruction(status, sequence.instructions(static_cast<int>(i)));
  }
  if (status.ok()) return status;
  for (std::byte* block : blocks) {
    if (block != nullptr) cache->Free(block).IgnoreError();  // held, so it can be freed
  }
  return status;
}

}  // namespace terrace
