// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/vm.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "worker/rank/warm.h"

namespace terrace {

absl::StatusOr<std::unique_ptr<Vm>> Vm::Create(const v1::Program& program,
                                               const PrepareOptions& options, const Clock* clock,
                                               StateFence* fence) {
  std::vector<v1::StreamKind> kinds;
  for (const v1::Stream& stream : program.streams()) kinds.push_back(stream.kind());
  if (std::count(kinds.begin(), kinds.end(), v1::COMPUTE) != 1) {
    return absl::InvalidArgumentError("the program must have exactly one compute stream");
  }
  std::unique_ptr<Vm> vm(new Vm(kinds, options, clock, fence));
  for (const v1::Sequence& sequence : program.sequences()) {
    ASSIGN_OR_RETURN(PreparedSequence prepared, PrepareSequence(program, sequence, options));
    vm->sequences_.push_back(std::move(prepared));
  }
  return vm;
}

const PreparedSequence* Vm::Find(std::string_view sequence) const {
  const auto found =
      std::find_if(sequences_.begin(), sequences_.end(),
                   [sequence](const PreparedSequence& s) { return s.name == sequence; });
  return found == sequences_.end() ? nullptr : &*found;
}

bool Vm::Has(std::string_view sequence) const { return Find(sequence) != nullptr; }

absl::Status Vm::Warm() {
  PreparedSequence warm = WarmSequence(sequences_);
  return streams_.Run(&warm, nullptr);
}

absl::Status Vm::Run(std::string_view sequence, SequenceIo* io) {
  for (PreparedSequence& prepared : sequences_) {
    if (prepared.name == sequence) return streams_.Run(&prepared, io);
  }
  return absl::NotFoundError(absl::StrCat("the program has no sequence '", Absl(sequence), "'"));
}

namespace {

double Busy(const PreparedStream& stream) {
  int64_t busy_ns = 0;
  for (const Slice& slice : stream.slices) busy_ns += slice.end_ns - slice.start_ns;
  return busy_ns * 1e-9;
}

// At its end everything waits for what is still under way.
double WaitedForCommunication(const PreparedStream& stream, int64_t start_ns,
                              int64_t communication_end_ns) {
  int64_t waited_ns = 0, idle_since_ns = start_ns;
  for (size_t i = 0; i < stream.slices.size(); ++i) {
    if (stream.instructions[i].waits_for_communication)
      waited_ns += stream.slices[i].start_ns - idle_since_ns;
    idle_since_ns = stream.slices[i].end_ns;
  }
  waited_ns += std::max<int64_t>(0, communication_end_ns - idle_since_ns);
  return waited_ns * 1e-9;
}

}  // namespace

SequenceTimes Times(const PreparedSequence& sequence) {
  SequenceTimes times;
  int64_t first_ns = 0, last_ns = 0, communication_end_ns = 0;
  for (const PreparedStream& stream : sequence.streams) {
    if (stream.slices.empty()) continue;
    first_ns = first_ns == 0 ? stream.slices.front().start_ns
                             : std::min(first_ns, stream.slices.front().start_ns);
    last_ns = std::max(last_ns, stream.slices.back().end_ns);
    if (stream.kind == v1::COMPUTE) times.compute += Busy(stream);
    if (!IsCommunication(stream.kind)) continue;
    times.collective += Busy(stream);
    communication_end_ns = std::max(communication_end_ns, stream.slices.back().end_ns);
  }
  for (const PreparedStream& stream : sequence.streams) {
    if (stream.kind == v1::COMPUTE)
      times.collective_exposed += WaitedForCommunication(stream, first_ns, communication_end_ns);
  }
  times.total = (last_ns - first_ns) * 1e-9;
  return times;
}

}  // namespace terrace
