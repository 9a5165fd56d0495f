// SPDX-License-Identifier: Apache-2.0
#include "worker/vm/sequence_times.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace terrace {
namespace {

constexpr double kSecondsPerNano = 1e-9;

// How much longer a loop took than its recorded iterations.
double ScaleOf(const PreparedStream& stream, const RecordedLoop& loop) {
  if (loop.left_out() == 0) return 1;
  const Slice* const slices = &stream.slices[loop.slices];
  const int64_t head = loop.head * loop.count, tail = loop.tail * loop.count;
  const int64_t left_out_ns = slices[head].start_ns - slices[head - 1].end_ns;
  const int64_t whole_ns = slices[head + tail - 1].end_ns - slices[0].start_ns;
  const int64_t recorded_ns = whole_ns - std::max<int64_t>(0, left_out_ns);
  return recorded_ns > 0 ? static_cast<double>(whole_ns) / static_cast<double>(recorded_ns) : 1;
}

double ScaleAt(const PreparedStream& stream, const PlayedCursor& at) {
  return at.loop() == nullptr ? 1 : ScaleOf(stream, *at.loop());
}

// What a stream executed, by played position.
struct Place {
  uint32_t stream = 0;
  int64_t position = 0;
};

class Waits {
 public:
  explicit Waits(const PreparedSequence& sequence) : sequence_(sequence) {}

  // Charges what was under way in [from_ns, to_ns) on the path of waits that led to the end of
  // `place`, times `scale`. Each turn goes to an instruction that had to end before the one at hand
  // could start.
  void Charge(std::optional<Place> place, int64_t from_ns, int64_t to_ns, double scale) {
    while (place && to_ns > from_ns) {
      const Slice& slice = SliceOf(*place);
      to_ns = std::min(to_ns, slice.end_ns);
      const int64_t start_ns = std::max(slice.start_ns, from_ns);
      if (start_ns < to_ns) ns_[KindAt(*place)] += static_cast<double>(to_ns - start_ns) * scale;
      to_ns = std::min(to_ns, start_ns);
      place = LastBefore(*place);
    }
  }

  // Of those that the instruction waits for on other streams, the one that ended last.
  std::optional<Place> LastWaitedFor(const PreparedInstruction& instruction,
                                     int64_t iteration) const {
    std::optional<Place> last;
    for (const WaitPoint& point : instruction.waits) {
      last = Later(last, {point.stream, point.At(static_cast<int32_t>(iteration)) - 1});
    }
    return last;
  }

  double seconds(WorkKind kind) const { return ns_[static_cast<int>(kind)] * kSecondsPerNano; }

 private:
  const PreparedInstruction& InstructionAt(Place place, int64_t* iteration) const {
    const PreparedStream& stream = sequence_.streams[place.stream];
    const PlayedPlace at = PlaceAt(stream.loops, place.position);
    *iteration = at.iteration;
    return stream.instructions[at.index];
  }
  const Slice& SliceOf(Place place) const {
    const PreparedStream& stream = sequence_.streams[place.stream];
    return stream.slices[SliceAt(stream.loops, place.position)];
  }
  int KindAt(Place place) const {
    int64_t iteration = 0;
    const PreparedInstruction& instruction = InstructionAt(place, &iteration);
    return static_cast<int>(WorkOf(instruction, sequence_.streams[place.stream].kind));
  }
  // `b` may be one that was not recorded, or was before the first.
  std::optional<Place> Later(std::optional<Place> a, Place b) const {
    if (SliceAt(sequence_.streams[b.stream].loops, b.position) < 0) return a;
    return a && SliceOf(*a).end_ns >= SliceOf(b).end_ns ? *a : b;
  }
  // The same with the instruction before on its own stream.
  std::optional<Place> LastBefore(Place place) const {
    int64_t iteration = 0;
    const PreparedInstruction& instruction = InstructionAt(place, &iteration);
    return Later(LastWaitedFor(instruction, iteration), {place.stream, place.position - 1});
  }

  const PreparedSequence& sequence_;
  std::array<double, 3> ns_{};  // by WorkKind
};

// The compute stream's waits, and at the end the wait for what is still under way.
void ChargeWaitsOf(const PreparedSequence& sequence, uint32_t compute, int64_t start_ns,
                   Waits* waits) {
  const PreparedStream& stream = sequence.streams[compute];
  int64_t idle_since_ns = start_ns;
  int32_t next = 0;  // position; another one is behind iterations that were not recorded
  for (PlayedCursor at = stream.cursor(); !at.AtEnd(); at.AdvanceRecorded()) {
    const Slice& slice = stream.slices[at.slice()];
    if (at.position() == next) {
      waits->Charge(waits->LastWaitedFor(stream.instructions[at.index()], at.iteration()),
                    idle_since_ns, slice.start_ns, ScaleAt(stream, at));
    }
    idle_since_ns = slice.end_ns;
    next = at.position() + 1;
  }
  std::optional<Place> last;
  int64_t last_ns = idle_since_ns;
  for (uint32_t s = 0; s < sequence.streams.size(); ++s) {
    const std::vector<Slice>& slices = sequence.streams[s].slices;
    if (slices.empty() || slices.back().end_ns <= last_ns) continue;
    last_ns = slices.back().end_ns;
    last = Place{s, sequence.streams[s].played() - 1};
  }
  waits->Charge(last, idle_since_ns, last_ns, 1);
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
std::array<double, 3> Busy(const PreparedSequence& sequence) {
  std::array<double, 3> busy_ns{};
  for (const PreparedStream& stream : sequence.streams) {
    for (PlayedCursor at = stream.cursor(); !at.AtEnd(); at.AdvanceRecorded()) {
      const WorkKind kind = WorkOf(stream.instructions[at.index()], stream.kind);
      if (kind == WorkKind::kCompute && stream.kind != v1::COMPUTE) continue;
      busy_ns[static_cast<int>(kind)] +=
          static_cast<double>(Nanos(stream.slices[at.slice()])) * ScaleAt(stream, at);
    }
  }
  return busy_ns;
}

}  // namespace

SequenceTimes Times(const PreparedSequence& sequence) {
  SequenceTimes times;
  const Slice whole = Whole(sequence);
  if (whole.end_ns == 0) return times;
  const std::array<double, 3> busy_ns = Busy(sequence);
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
    for (PlayedCursor at = stream.cursor(); !at.AtEnd(); at.AdvanceRecorded()) {
      const PreparedInstruction& instruction = stream.instructions[at.index()];
      if (instruction.copied_bytes == 0) continue;
      CopyTraffic& kind = (*traffic)[instruction.source->copy().kind()];
      // Each moves the same bytes: those of an iteration that was left out stand with the first.
      const int64_t times =
          at.loop() != nullptr && at.iteration() == 0 ? 1 + at.loop()->left_out() : 1;
      kind.bytes += times * instruction.copied_bytes;
      kind.seconds += static_cast<double>(Nanos(stream.slices[at.slice()])) * ScaleAt(stream, at) *
                      kSecondsPerNano * scale;
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
