// Executes one sequence of all stages together: when each instruction starts and ends, and what it
// waited for last.
//
// An instruction is ready when its stream is free and its waits are over; when what it waited for
// last was on another stream, waking its own takes WakeSeconds. Streams run at the same time and
// slow each other down as contention.h says. Instructions of several stages that communicate, the
// two ends of a transfer and the members of a collective over the pipeline, start when all of them
// are ready and end together, at the pace of the slowest. The ranks of one stage do the same at the
// same time, so that one stands for all.
//
// Discrete events in the order of time: whenever something starts or ends, the rest of what runs
// beside it is dated anew.
//
// Pure; JointRun is used by one thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "coordinator/simulator/contention.h"
#include "proto/program/play_order.h"
#include "proto/v1/plan.pb.h"
#include "proto/v1/program.pb.h"

namespace terrace {

struct InstructionRef {
  int stage = -1;        // index among the programs given; -1: none
  int instruction = -1;  // its place in the order
};
struct RunInstruction {
  double start_seconds = -1;  // -1: not run
  double end_seconds = -1;
  InstructionRef after;  // whose end was the start; none at time 0
  bool ran() const { return end_seconds >= 0; }
};

// One stage's part: what is executed, in which order, and how long each takes alone.
struct StageInput {
  const v1::Program* program = nullptr;
  const v1::Sequence* sequence = nullptr;
  PlayOrder order;                 // of the sequence
  std::vector<double> seconds;     // by place in the order
  std::vector<double> contention;  // by place, InstructionTime::Contention
  std::vector<double> wake;        // by place, InstructionTime::WakeSeconds

  int size() const { return static_cast<int>(order.played.size()); }
  const v1::Instruction& At(int place) const {
    return sequence->instructions(order.played[place].instruction);
  }
};

class JointRun {
 public:
  // `stages` must outlive it.
  JointRun(const std::vector<StageInput>& stages, const v1::HardwareProfile& profile);

  // Once. INVALID_ARGUMENT when a stream or wait does not exist; FAILED_PRECONDITION when the
  // stages wait for each other, with the instructions at which they stand.
  absl::Status Run();

  // By stage and place in its order; of a run that succeeded.
  const std::vector<std::vector<RunInstruction>>& instructions() const { return ran_; }

 private:
  struct Stream {
    std::vector<int> instructions;
    size_t next = 0;
    bool busy = false;  // its next instruction runs, or waits in a rendezvous
    int task = -1;      // index in tasks_ of what runs here alone
  };
  struct Stage {
    std::vector<Stream> streams;
    std::vector<int> rendezvous;            // by place: index in rendezvous_; -1: needs no other
    std::vector<std::vector<int>> waiting;  // by place: streams that go on when it ends
    WorkCounts running = {};
    double contention = 0;  // of all that communicate
  };
  // Instructions that start together.
  struct Rendezvous {
    int expected = 0;
    std::vector<InstructionRef> members;
    double start = 0;
    InstructionRef after;
    double seconds = 0;  // of the slowest
  };
  // What runs: an instruction, or a rendezvous.
  struct Task {
    InstructionRef alone;  // or
    int rendezvous = -1;
    double start = 0;
    InstructionRef after;
    double left = 0;  // seconds at the pace of 1, at `since`
    double since = 0;
    double rate = 0;
    uint32_t version = 0;  // of the date in ends_ that counts
  };
  struct Node {
    std::vector<int> tasks;  // that run, in the order of their start
    Contention::Load load;
    bool changed = false;
  };

  // Group, sender and receiver (0 and 0: a collective), and how many of these there were before.
  using RendezvousKey = std::array<uint32_t, 4>;
  using End = std::tuple<double, int, uint32_t>;  // when, task, version

  absl::Status Arrange(int stage);
  void FindRendezvous(InstructionRef ref, std::map<RendezvousKey, uint32_t>* counts);
  int Participants(const v1::Program& program, const v1::Instruction& instruction) const;
  void StartAll();
  void Advance(int stage, int stream);
  bool Ready(InstructionRef ref, int stream, RunInstruction* run);
  double Alone(InstructionRef ref, const RunInstruction& run) const;
  void Arrive(InstructionRef ref, const RunInstruction& ready);
  void Start(int task, const RunInstruction& run, double seconds);
  void Finish(int task);
  void FinishOne(InstructionRef ref, const RunInstruction& run);
  void Count(int task, int sign);
  double RateOf(InstructionRef ref) const;
  void Date(Node* node);
  absl::Span<const InstructionRef> Members(const Task& task) const;
  absl::Status WhereTheyStand() const;

  const v1::Instruction& At(InstructionRef ref) const {
    return inputs_[ref.stage].At(ref.instruction);
  }
  Work WorkAt(InstructionRef ref) const {
    return terrace::WorkOf(*inputs_[ref.stage].program, At(ref));
  }

  const std::vector<StageInput>& inputs_;
  const Contention pace_;
  double now_ = 0;
  std::vector<Stage> stages_;
  std::vector<std::vector<RunInstruction>> ran_;
  std::vector<Rendezvous> rendezvous_;
  std::map<RendezvousKey, int> rendezvous_of_;  // index in rendezvous_
  std::vector<std::pair<int, int>> work_;       // stage and stream that may go on
  std::vector<Task> tasks_;                     // one a stream, then one a rendezvous
  int first_rendezvous_ = 0;                    // in tasks_
  std::vector<Node> nodes_;
  std::priority_queue<End, std::vector<End>, std::greater<End>> ends_;
};

}  // namespace terrace
