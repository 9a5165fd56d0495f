// The graphs of a program's sequences: which there are, and when a sequence is launched as one.
//
// A graph leaves no times of single instructions. So the first execution of a sequence, and every
// kRunsAGraph-th, is launched instruction by instruction, and metrics show the times of that one;
// executions that somebody wants to see (a trace) or that a checkpoint may hold back in the middle
// are launched so too.
//
// A graph with collectives is launched by all their members or by none. Whether a rank can have one
// also depends on what carries its groups, which is not alike on all: so ranks tell each other,
// once, which sequences they lack (MeasureExternal), and all drop those. From then on they come to
// the same answer for each execution, as it follows from counts that they share.
//
// Used on the VM's thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/v1/program.pb.h"
#include "worker/device/device_queue.h"
#include "worker/vm/prepared_program.h"

namespace terrace {

// Of so many executions of a sequence one is launched instruction by instruction.
inline constexpr int64_t kRunsAGraph = 64;

struct StepGraph {
  struct Group {
    GraphCollectives* group = nullptr;
    int64_t sent_bytes = 0;  // by each run
  };
  std::unique_ptr<DeviceGraph> graph;
  std::vector<Group> groups;  // whose collectives are in it
};

// Null `graph` and why in *refused where it cannot be made and all goes on as before; an error
// where a group of it is broken. REQUIRES: WhyNotGraphable(the sequence) is empty; nothing of it
// runs. Where it holds collectives their members all call this.
absl::StatusOr<StepGraph> CaptureGraph(const PreparedSequence& sequence, absl::Status* refused);

class StepGraphs {
 public:
  // Captures every sequence that can be. What cannot is said in the log once, and launched as ever.
  // `captured`: as WhyNotGraphable's. An error: what broke a group, which takes no calls from then
  // on, and the way out.
  absl::Status Capture(const v1::Program& program, std::span<const PreparedSequence> sequences,
                       const std::vector<bool>& captured, Backend* backend);
  // What those that are there took of the device when they were made. Where other ranks share the
  // device and its driver does not tell them apart, what these took meanwhile is in it.
  int64_t bytes() const;
  bool Has(size_t sequence) const {
    return sequence < graphs_.size() && graphs_[sequence].graph.graph != nullptr;
  }

  // False: there was none.
  bool Clear();
  // The same of the sequence's, where it holds collectives.
  bool ClearCollectives(size_t sequence);

  // The graph to launch the sequence's next execution with; null: one by one.
  const StepGraph* Next(size_t sequence, bool one_by_one);

 private:
  struct SequenceGraph {
    StepGraph graph;
    int64_t bytes = 0;
    int64_t runs = 0;  // of the graph since the last launch one by one; negative: none yet
  };

  std::vector<SequenceGraph> graphs_;  // by sequence; empty: nothing was captured
};

}  // namespace terrace
