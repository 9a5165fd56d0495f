// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/sequence_times.h"

#include <algorithm>
#include <optional>

namespace terrace {
namespace {

constexpr double kSecondsPerNano = 1e-9;

// An instruction within its sequence.
struct Place {
  uint32_t stream = 0;
  int index = 0;
};

class Waits {
 public:
  explicit Waits(const PreparedSequence& sequence) : sequence_(sequence) {}

  // Charges what was under way in [from_ns, to_ns) on the path of waits that led to the end of
  // `place`. Each turn goes to an instruction that had to end before the one at hand could start.
  void Charge(std::optional<Place> place, int64_t from_ns, int64_t to_ns) {
    while (place && to_ns > from_ns) {
      const Slice& slice = SliceOf(*place);
      to_ns = std::min(to_ns, slice.end_ns);
      const int64_t start_ns = std::max(slice.start_ns, from_ns);
      if (start_ns < to_ns) ns_[KindAt(*place)] += to_ns - start_ns;
      to_ns = std::min(to_ns, start_ns);
      place = LastBefore(*place);
    }
  }

  // Of those that the instruction waits for on other streams, the one that ended last.
  std::optional<Place> LastWaitedFor(Place place) const {
    std::optional<Place> last;
    for (const WaitPoint& point : InstructionAt(place).waits)
      last = Later(last, {point.stream, point.position - 1});
    return last;
  }

  double seconds(WorkKind kind) const { return ns_[static_cast<int>(kind)] * kSecondsPerNano; }

 private:
  const PreparedInstruction& InstructionAt(Place place) const {
    return sequence_.streams[place.stream].instructions[place.index];
  }
  const Slice& SliceOf(Place place) const {
    return sequence_.streams[place.stream].slices[place.index];
  }
  int KindAt(Place place) const {
    return static_cast<int>(WorkOf(InstructionAt(place), sequence_.streams[place.stream].kind));
  }
  Place Later(std::optional<Place> a, Place b) const {
    return a && SliceOf(*a).end_ns >= SliceOf(b).end_ns ? *a : b;
  }
  // The same with the instruction before on its own stream.
  std::optional<Place> LastBefore(Place place) const {
    std::optional<Place> last = LastWaitedFor(place);
    if (place.index > 0) last = Later(last, {place.stream, place.index - 1});
    return last;
  }

  const PreparedSequence& sequence_;
  std::array<int64_t, 3> ns_{};  // by WorkKind
};

// The compute stream's waits, and at the end the wait for what is still under way.
void ChargeWaitsOf(const PreparedSequence& sequence, uint32_t compute, int64_t start_ns,
                   Waits* waits) {
  const PreparedStream& stream = sequence.streams[compute];
  int64_t idle_since_ns = start_ns;
  for (int i = 0; i < static_cast<int>(stream.slices.size()); ++i) {
    waits->Charge(waits->LastWaitedFor({compute, i}), idle_since_ns, stream.slices[i].start_ns);
    idle_since_ns = stream.slices[i].end_ns;
  }
  std::optional<Place> last;
  int64_t last_ns = idle_since_ns;
  for (uint32_t s = 0; s < sequence.streams.size(); ++s) {
    const std::vector<Slice>& slices = sequence.streams[s].slices;
    if (slices.empty() || slices.back().end_ns <= last_ns) continue;
    last_ns = slices.back().end_ns;
    last = Place{s, static_cast<int>(slices.size()) - 1};
  }
  waits->Charge(last, idle_since_ns, last_ns);
}

int64_t Nanos(const Slice& slice) { return slice.end_ns - slice.start_ns; }

// From the first start to the last end, which is 0 where nothing was executed.
Slice Whole(const PreparedSequence& sequence) {
  Slice whole{.start_ns = INT64_MAX, .end_ns = 0};
  for (const PreparedStream& stream : sequence.streams) {
    if (stream.slices.empty()) continue;
    whole.start_ns = std::min(whole.start_ns, stream.slices.front().start_ns);
    whole.end_ns = std::max(whole.end_ns, stream.slices.back().end_ns);
  }
  return whole;
}

// Nanoseconds by WorkKind. Of computation only the compute stream's: inputs load beside it.
std::array<int64_t, 3> Busy(const PreparedSequence& sequence) {
  std::array<int64_t, 3> busy_ns{};
  for (const PreparedStream& stream : sequence.streams) {
    for (size_t i = 0; i < stream.slices.size(); ++i) {
      const WorkKind kind = WorkOf(stream.instructions[i], stream.kind);
      if (kind == WorkKind::kCompute && stream.kind != v1::COMPUTE) continue;
      busy_ns[static_cast<int>(kind)] += Nanos(stream.slices[i]);
    }
  }
  return busy_ns;
}

}  // namespace

SequenceTimes Times(const PreparedSequence& sequence) {
  SequenceTimes times;
  const Slice whole = Whole(sequence);
  if (whole.end_ns == 0) return times;
  const std::array<int64_t, 3> busy_ns = Busy(sequence);
  const auto busy = [&busy_ns](WorkKind kind) {
    return busy_ns[static_cast<int>(kind)] * kSecondsPerNano;
  };
  times.compute = busy(WorkKind::kCompute);
  times.collective = busy(WorkKind::kCommunication);
  times.offload = busy(WorkKind::kOffload);
  Waits waits(sequence);
  for (uint32_t s = 0; s < sequence.streams.size(); ++s) {
    if (sequence.streams[s].kind == v1::COMPUTE) ChargeWaitsOf(sequence, s, whole.start_ns, &waits);
  }
  times.collective_exposed = waits.seconds(WorkKind::kCommunication);
  times.offload_exposed = waits.seconds(WorkKind::kOffload);
  times.total = Nanos(whole) * kSecondsPerNano;
  return times;
}

double Seconds(const PreparedSequence& sequence) {
  const Slice whole = Whole(sequence);
  return whole.end_ns == 0 ? 0 : Nanos(whole) * kSecondsPerNano;
}

SequenceTimes Scaled(const SequenceTimes& times, double scale) {
  return {.total = times.total * scale,
          .compute = times.compute * scale,
          .collective = times.collective * scale,
          .collective_exposed = times.collective_exposed * scale,
          .offload = times.offload * scale,
          .offload_exposed = times.offload_exposed * scale};
}

void AddTraffic(const PreparedSequence& sequence, double scale, TrafficByKind* traffic) {
  for (const PreparedStream& stream : sequence.streams) {
    for (size_t i = 0; i < stream.slices.size(); ++i) {
      const PreparedInstruction& instruction = stream.instructions[i];
      if (instruction.copied_bytes == 0) continue;
      CopyTraffic& kind = (*traffic)[instruction.source->copy().kind()];
      kind.bytes += instruction.copied_bytes;
      kind.seconds += Nanos(stream.slices[i]) * kSecondsPerNano * scale;
    }
  }
}

google::protobuf::RepeatedPtrField<v1::OffloadTraffic> TrafficLines(const TrafficByKind& traffic) {
  google::protobuf::RepeatedPtrField<v1::OffloadTraffic> lines;
  for (int kind = 0; kind < static_cast<int>(traffic.size()); ++kind) {
    if (traffic[kind].bytes == 0) continue;
    v1::OffloadTraffic* line = lines.Add();
    const bool nvme = kind == v1::NVME_LOAD || kind == v1::NVME_STORE;
    line->set_tier(nvme ? v1::NVME : v1::HOST);
    line->set_write(kind == v1::TO_HOST || kind == v1::NVME_STORE);
    line->set_bytes(traffic[kind].bytes);
    line->set_seconds(traffic[kind].seconds);
  }
  return lines;
}

}  // namespace terrace
