// The graphs of a program's sequences: which there are, and when a sequence is launched as one.
//
// A graph leaves no times of single instructions. So the first execution of a sequence, and every
// kRunsAGraph-th, is launched instruction by instruction, and metrics show the times of that one;
// executions that somebody wants to see (a trace) or that a checkpoint may hold back in the middle
// are launched so too.
//
// Used on the VM's thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/v1/program.pb.h"
#include "worker/rank/device_queue.h"
#include "worker/rank/prepared_program.h"

namespace terrace {

// Of so many executions of a sequence one is launched instruction by instruction.
inline constexpr int64_t kRunsAGraph = 64;

// REQUIRES: WhyNotGraphable(the sequence) is empty; nothing of it runs.
absl::StatusOr<std::unique_ptr<DeviceGraph>> CaptureGraph(const PreparedSequence& sequence);

class StepGraphs {
 public:
  // Captures every sequence that can be. What cannot is said in the log once, and launched as ever.
  void Capture(const v1::Program& program, std::span<const PreparedSequence> sequences);

  // False: there was none.
  bool Clear();

  // The graph to launch the sequence's next execution with; null: one by one.
  const DeviceGraph* Next(size_t sequence, bool one_by_one);

 private:
  struct SequenceGraph {
    std::unique_ptr<DeviceGraph> graph;
    int64_t runs = 0;  // of the graph since the last launch one by one; negative: none yet
  };
  bool Has(size_t sequence) const { return sequence < graphs_.size() && graphs_[sequence].graph; }

  std::vector<SequenceGraph> graphs_;  // by sequence; empty: nothing was captured
};

}  // namespace terrace
