// SPDX-License-Identifier: Apache-2.0
#include "worker/vm/vm.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "proto/program/allocation_events.h"
#include "worker/device/graphable.h"
#include "worker/vm/dynamic_memory.h"
#include "worker/vm/warm.h"

namespace terrace {

namespace {

// All that is ever copied from and to NVMe; empty without a host tier.
std::span<std::byte> HostMemory(const v1::Program& program, std::span<std::byte* const> arenas) {
  for (const v1::Arena& arena : program.arenas()) {
    if (arena.tier() == v1::HOST) return {arenas[arena.id()], static_cast<size_t>(arena.bytes())};
  }
  return {};
}

absl::Status ReserveMarks(const PreparedSequence& sequence) {
  for (const PreparedStream& stream : sequence.streams) {
    for (DeviceQueue* queue : {stream.queue, stream.captured}) {
      if (queue == nullptr) continue;
      RETURN_IF_ERROR(queue->Reserve(MarksOf(stream)));
    }
  }
  return absl::OkStatus();
}

bool WritesState(const PreparedSequence& sequence) {
  for (const PreparedStream& stream : sequence.streams) {
    for (const PreparedInstruction& instruction : stream.instructions)
      if (instruction.writes_state) return true;
  }
  return false;
}

void NameSlowerPath(const NvmeQueue& queue) {
  const std::string because = queue.slower_because();
  if (!because.empty()) log::Warn("NVMe is slower than it could be: ", because);
}

}  // namespace

Vm::Vm(const v1::Program& program, std::span<const v1::StreamKind> kinds,
       const PrepareOptions& options, const Clock* clock, StateFence* fence)
    : program_(program),
      clock_(clock),
      backend_(options.backend),
      groups_(options.groups),
      fence_(fence),
      flight_(options.flight),
      dynamic_(options.dynamic),
      own_counters_(flight_ == nullptr ? std::make_unique<FlightCounter[]>(kinds.size()) : nullptr),
      nvme_queues_(kinds.size()),
      queues_(kinds.size()),
      captured_(kinds.size()),
      streams_(
          kinds, clock, fence, options.groups,
          flight_ != nullptr ? flight_->progress() : std::span(own_counters_.get(), kinds.size()),
          options.backend) {}

absl::Status Vm::OpenQueues(const v1::Program& program, const PrepareOptions& options) {
  for (int i = 0; i < program.streams_size(); ++i) {
    const v1::StreamKind kind = program.streams(i).kind();
    if (options.backend != nullptr) {
      ASSIGN_OR_RETURN(queues_[i], options.backend->NewQueue(kind));
      if (kind == v1::COLLECTIVE && options.backend->uses_graphs())
        captured_[i] = options.backend->NewCollectiveQueue();
    }
    if ((kind != v1::NVME_READ && kind != v1::NVME_WRITE) || options.nvme == nullptr) continue;
    ASSIGN_OR_RETURN(nvme_queues_[i], options.nvme->NewQueue());
    nvme_queues_[i]->RegisterMemory(HostMemory(program, options.arenas));
    NameSlowerPath(*nvme_queues_[i]);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Vm>> Vm::Create(const v1::Program& program,
                                               const PrepareOptions& options, const Clock* clock,
                                               StateFence* fence) {
  std::vector<v1::StreamKind> kinds;
  for (const v1::Stream& stream : program.streams()) kinds.push_back(stream.kind());
  if (std::count(kinds.begin(), kinds.end(), v1::COMPUTE) != 1) {
    return absl::InvalidArgumentError("the program must have exactly one compute stream");
  }
  if (UsesCaching(program) != (options.dynamic != nullptr)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "allocator: got '", program.allocator(), "', the rank has ",
        options.dynamic != nullptr ? "a caching allocator" : "none", " for step buffers"));
  }
  std::unique_ptr<Vm> vm(new Vm(program, kinds, options, clock, fence));
  RETURN_IF_ERROR(vm->OpenQueues(program, options));
  for (const v1::Sequence& sequence : program.sequences()) {
    ASSIGN_OR_RETURN(PreparedSequence prepared,
                     PrepareSequence(program, sequence, options, vm->nvme_queues_, vm->queues_));
    for (size_t i = 0; i < prepared.streams.size(); ++i)
      prepared.streams[i].captured = vm->captured_[i].get();
    RETURN_IF_ERROR(ReserveMarks(prepared));
    vm->sequences_.push_back(std::move(prepared));
  }
  for (size_t i = 0; i < vm->sequences_.size() && vm->dynamic_ != nullptr; ++i)
    vm->dynamic_->Bind(static_cast<int>(i), &vm->sequences_[i]);
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
  if (dynamic_ != nullptr) RETURN_IF_ERROR(dynamic_->BeginWarm());
  PreparedSequence warm = WarmSequence(sequences_);
  absl::Status status = ReserveMarks(warm);
  if (status.ok()) status = streams_.Run(&warm, nullptr);
  if (dynamic_ != nullptr) status.Update(dynamic_->EndWarm());
  // After it: what kernels load when they are first launched is there.
  if (status.ok() && backend_ != nullptr && backend_->uses_graphs()) status = CaptureGraphs();
  return status;
}

absl::Status Vm::CaptureGraphs() {
  const bool stream = std::any_of(captured_.begin(), captured_.end(),
                                  [](const auto& queue) { return queue != nullptr; });
  std::vector<bool> captured;
  for (const auto& group : groups_)
    captured.push_back(stream && group != nullptr && group->graph_collectives() != nullptr);
  return graphs_.Capture(program_, sequences_, captured, backend_);
}

std::vector<bool> Vm::LacksCollectiveGraphs() const {
  std::vector<bool> lacks;
  for (const v1::Sequence& sequence : program_.sequences())
    lacks.push_back(HasCollectives(sequence) && !graphs_.Has(lacks.size()));
  return lacks;
}

bool Vm::DropCollectiveGraphs(const std::vector<bool>& sequences) {
  bool any = false;
  for (size_t i = 0; i < sequences.size(); ++i)
    any = (sequences[i] && graphs_.ClearCollectives(i)) || any;
  return any;
}

// Whether somebody may still read what the sequence writes. Once it has run instruction by
// instruction nobody does, until the next begins to read: so all ranks come to one answer, however
// long each of them reads.
bool Vm::MayBeHeldBack(const PreparedSequence& sequence) {
  if (fence_ == nullptr || !WritesState(sequence)) return false;
  return std::exchange(reads_seen_, fence_->reads()) != fence_->reads();
}

absl::Status Vm::Execute(size_t sequence, SequenceIo* io, bool one_by_one) {
  const bool held_back = MayBeHeldBack(sequences_[sequence]);
  const StepGraph* const graph = graphs_.Next(sequence, one_by_one || held_back);
  slices_scale_ = 1;
  if (graph == nullptr) return streams_.Run(&sequences_[sequence], io);
  if (fence_ != nullptr && !fence_->IsUnread()) fence_->WaitUntilUnread();
  ++graph_runs_;
  const int64_t start_ns = clock_->MonotonicNanos();
  const absl::Status status = streams_.RunGraph(&sequences_[sequence], io, *graph);
  const double seconds = (clock_->MonotonicNanos() - start_ns) * 1e-9;
  const double of_slices = Seconds(sequences_[sequence]);
  if (of_slices > 0) slices_scale_ = seconds / of_slices;
  return status;
}

absl::Status Vm::Run(std::string_view sequence, SequenceIo* io, bool one_by_one) {
  for (size_t i = 0; i < sequences_.size(); ++i) {
    if (sequences_[i].name != sequence) continue;
    if (flight_ != nullptr) flight_->Begin(static_cast<int32_t>(i));
    if (dynamic_ != nullptr) dynamic_->Begin(static_cast<int>(i));
    absl::Status status = Execute(i, io, one_by_one);
    if (dynamic_ != nullptr) dynamic_->End();
    if (flight_ != nullptr) flight_->End();
    if (status.ok()) AddTraffic(sequences_[i], slices_scale_, &traffic_);
    return status;
  }
  return absl::NotFoundError(absl::StrCat("the program has no sequence '", Absl(sequence), "'"));
}

}  // namespace terrace
