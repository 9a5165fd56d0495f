// Pipeline schedules: in which order each stage runs the forward and backward passes of its model
// chunks over the micro-batches of a step. Order only: when things happen follows from the
// programs.
//
//   gpipe        all forward passes, then all backward passes (Huang et al. 2018, arXiv 1811.06965)
//   1f1b         PipeDream-flush (Narayanan et al. 2020, arXiv 2006.09503)
//   interleaved  1f1b over several chunks a stage (Narayanan et al. 2021, arXiv 2104.04473)
//   zb-h1        1f1b with backward split into input and weight gradients (Qi et al. 2023, arXiv
//                2401.10241), at the memory of 1f1b
//   zbv          the same over two chunks a stage in V shape (Qi et al. 2024, arXiv 2405.15362)
//
// What a stage needs besides one compute stream, so that no order here deadlocks or is slowed when
// nothing is buffered between stages: one stream for each direction (forward, backward), kind
// (send, receive) and peer, on which messages follow the order of the passes; a receive posted by
// the time the pass before its own starts; two buffers for what is sent to one peer in one
// direction (SendsRetire). Waiting for each send a fixed number of passes later would do for all
// but zbv, where a stage runs further ahead of its neighbour.
//
// Pure, deterministic and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace::compiler {

enum class PassKind {
  kForward,
  kBackward,        // gradients of inputs and weights together
  kBackwardInput,   // gradients of inputs; weight gradients are put off
  kBackwardWeight,  // what kBackwardInput put off
};

struct Pass {
  PassKind kind = PassKind::kForward;
  int micro_batch = 0;
  int chunk = 0;  // of the stage: 0 to chunks - 1
  bool operator==(const Pass&) const = default;
};

struct ScheduleShape {
  std::string name;  // "gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "breadth_first"
  int stages = 1;
  int chunks = 1;  // a stage: 1, except breadth_first (any), interleaved (2 or more) and zbv (2)
  int micro_batches = 1;
};

// One list a stage. Every micro-batch passes every chunk once forward and once backward (or input
// and weight), each after what it depends on in some joint execution of all stages in which sends
// are rendezvous. Any number of micro-batches. INVALID_ARGUMENT names the field and the rule.
absl::StatusOr<std::vector<std::vector<Pass>>> MakeSchedule(const ScheduleShape& shape);

// Chunks of the whole model in the order of its layers: 0 to stages * chunks - 1.
int ModelChunk(const ScheduleShape& shape, int stage, int chunk);
struct StageChunk {
  int stage = 0;
  int chunk = 0;
  bool operator==(const StageChunk&) const = default;
};
// The inverse.
StageChunk StageChunkOf(const ScheduleShape& shape, int model_chunk);

// Where what a pass makes is needed next: activations in the next model chunk, gradients of inputs
// in the one before. It may be on the same stage. None at the ends of the model and for weight
// passes.
std::optional<StageChunk> ConsumerOf(const ScheduleShape& shape, int stage, const Pass& pass);
// Where the pass finds what it needs from another chunk.
std::optional<StageChunk> ProducerOf(const ScheduleShape& shape, int stage, const Pass& pass);

// By position in the list of one stage: the position of the first pass that may wait until what
// this one sent has left: the one that makes the next message but one to the same stage in the same
// direction, of kBreadthFirst with several chunks the same message of the next run. passes.size()
// when no pass has to wait, -1 for passes that send nothing to another stage.
std::vector<int> SendsRetire(const ScheduleShape& shape, int stage,
                             const std::vector<Pass>& passes);

// The schedule in which all micro-batches go through a chunk in one run: what the chunk's passes
// have in common comes and goes once a run.
inline constexpr std::string_view kBreadthFirst = "breadth_first";

// True when the schedule splits backward passes.
bool SplitsBackward(std::string_view name);

struct IdealCosts {  // of one pass over one chunk
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  double transfer = 0;
};
struct IdealTimes {
  double step = 0;
  double bubble_ratio = 0;                      // idle over busy time, of the busiest stage
  std::vector<std::vector<double>> start, end;  // by stage and position in its list
};
// The schedule on ideal costs, every stage as early as its order allows. Infinite times from where
// an order that MakeSchedule did not make blocks.
IdealTimes PlayIdeal(const ScheduleShape& shape, const std::vector<std::vector<Pass>>& schedule,
                     const IdealCosts& costs);

// Clock x stage, for people: one row a stage, one column a unit of time, "3" the forward pass of
// micro-batch 3, "3'" its backward pass (input gradients), "3w" its weight gradients, "." nothing;
// chunks are told apart by a letter ("a3", "b3") when there are several. An unsplit backward pass
// takes two units. At most `columns` wide, cut with "...".
std::string ScheduleTable(const ScheduleShape& shape,
                          const std::vector<std::vector<Pass>>& schedule, int columns);

}  // namespace terrace::compiler
