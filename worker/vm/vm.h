// The virtual machine of a rank: a program prepared once, then executed sequence by sequence.
//
//   Create   decode, resolve every operand to its address, connect instructions to kernels, groups
//   Warm     every distinct computation once, before initialisation; on a GPU graphs are captured
//   Run      execute one sequence: "train", "eval" and others (step.h of the compiler)
//
// While a sequence runs, each stream publishes how many instructions it has finished into a counter
// that others wait for. Given a flight recorder these counters are the recorder's, in memory that
// outlives the process: what a killed rank was doing is known at no cost.
//
// Borrows the program, its memory, the groups and the recorder. Used only on the thread that
// created it; it starts the threads of the other streams itself.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "proto/v1/program.pb.h"
#include "worker/flight/flight_recorder.h"
#include "worker/vm/prepared_program.h"
#include "worker/vm/sequence_io.h"
#include "worker/vm/sequence_times.h"
#include "worker/vm/step_graph.h"
#include "worker/vm/streams.h"

namespace terrace {

class Vm {
 public:
  // `fence` may be null. What NvmeFile::NewQueue says when a queue cannot be had; otherwise as
  // PrepareSequence.
  static absl::StatusOr<std::unique_ptr<Vm>> Create(const v1::Program& program,
                                                    const PrepareOptions& options,
                                                    const Clock* clock, StateFence* fence);

  bool Has(std::string_view sequence) const;
  absl::Status Warm();
  // NOT_FOUND when the program has no such sequence. Otherwise what the first failing instruction
  // says: UNAVAILABLE when a peer is lost. `one_by_one`: its slices are wanted, so it is not
  // launched as a graph.
  absl::Status Run(std::string_view sequence, SequenceIo* io, bool one_by_one = false);

  // The sequence as prepared, with the slices of its last execution that was not launched as a
  // graph (step_graph.h). Null when there is none of that name.
  const PreparedSequence* Find(std::string_view sequence) const;
  // What all executions since Create have copied between tiers.
  const TrafficByKind& traffic() const { return traffic_; }
  // Null when the program is planned.
  const DynamicMemory* dynamic() const { return dynamic_; }
  // The seconds of the last execution over those of the slices that Find shows: 1 unless it was
  // launched as a graph.
  double slices_scale() const { return slices_scale_; }
  // Gives the graphs' memory back: from then on instructions are launched one by one. False: there
  // was none.
  bool DropGraphs() { return graphs_.Clear(); }
  // What they took of the device when they were made.
  int64_t graph_bytes() const { return graphs_.bytes(); }
  // By sequence: whether it has collectives and is no graph. Where one of any rank of a job is so,
  // all of them drop theirs. False: there was none.
  std::vector<bool> LacksCollectiveGraphs() const;
  bool DropCollectiveGraphs(const std::vector<bool>& sequences);
  // Executions that were launched as graphs.
  int64_t graph_runs() const { return graph_runs_; }

 private:
  Vm(const v1::Program& program, std::span<const v1::StreamKind> kinds,
     const PrepareOptions& options, const Clock* clock, StateFence* fence);
  absl::Status OpenQueues(const v1::Program& program, const PrepareOptions& options);
  absl::Status Execute(size_t sequence, SequenceIo* io, bool one_by_one);
  bool MayBeHeldBack(const PreparedSequence& sequence);
  absl::Status CaptureGraphs();

  const v1::Program& program_;
  const Clock* const clock_;
  Backend* const backend_;
  const std::span<const std::unique_ptr<Communicator>> groups_;
  StateFence* const fence_;
  FlightWriter* const flight_;
  DynamicMemory* const dynamic_;
  const std::unique_ptr<FlightCounter[]> own_counters_;  // without a recorder
  std::vector<std::unique_ptr<NvmeQueue>> nvme_queues_;  // by stream; null: copies no NVMe
  std::vector<std::unique_ptr<DeviceQueue>> queues_;     // by stream; null: its thread executes it
  std::vector<std::unique_ptr<DeviceQueue>> captured_;   // by stream; see PreparedStream
  std::vector<PreparedSequence> sequences_;
  StepGraphs graphs_;
  int64_t reads_seen_ = 0;  // of the fence, before the last execution that wrote state
  int64_t graph_runs_ = 0;
  double slices_scale_ = 1;
  TrafficByKind traffic_{};
  Streams streams_;
};

}  // namespace terrace
