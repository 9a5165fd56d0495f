// Executes one sequence of all stages together: when each instruction starts and ends, and what it
// waited for last.
//
// An instruction is ready when its stream is free and its waits are over. Streams run at the same
// time and do not slow each other down, except as the given seconds say (duplex.h). Instructions of
// several stages that communicate, the two ends of a transfer and the members of a collective over
// the pipeline, start when all of them are ready and end together. The ranks of one stage do the
// same at the same time, so that one stands for all.
//
// Pure; JointRun is used by one thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proto/v1/program.pb.h"

namespace terrace {

struct InstructionRef {
  int stage = -1;  // index among the programs given; -1: none
  int instruction = -1;
};
struct RunInstruction {
  double start_seconds = -1;  // -1: not run
  double end_seconds = -1;
  InstructionRef after;  // whose end was the start; none at time 0
  bool ran() const { return end_seconds >= 0; }
};

// One stage's part: the sequence and how long each of its instructions takes.
struct StageInput {
  const v1::Program* program = nullptr;
  const v1::Sequence* sequence = nullptr;
  std::vector<double> seconds;  // by instruction
};

class JointRun {
 public:
  // `stages` must outlive it.
  explicit JointRun(const std::vector<StageInput>& stages) : inputs_(stages) {}

  // Once. INVALID_ARGUMENT when a stream or wait does not exist; FAILED_PRECONDITION when the
  // stages wait for each other, with the instructions at which they stand.
  absl::Status Run();

  // By stage and instruction; of a run that succeeded.
  const std::vector<std::vector<RunInstruction>>& instructions() const { return ran_; }

 private:
  struct Stream {
    std::vector<int> instructions;
    size_t next = 0;
    bool arrived = false;  // its next instruction waits in a meeting
  };
  struct Stage {
    std::vector<Stream> streams;
    std::vector<int> meeting;               // by instruction: index in meetings_; -1: meets nobody
    std::vector<std::vector<int>> waiting;  // by instruction: streams that go on when it ends
  };
  // Instructions that start together.
  struct Meeting {
    int expected = 0;
    std::vector<InstructionRef> members;
    double start = 0;
    InstructionRef after;
    double seconds = 0;  // of the slowest
  };

  // Group, sender and receiver (0 and 0: a collective), and how many of these there were before.
  using MeetingKey = std::array<uint32_t, 4>;

  absl::Status Arrange(int stage);
  void FindMeeting(InstructionRef ref, std::map<MeetingKey, uint32_t>* counts);
  int Participants(const v1::Program& program, const v1::Instruction& instruction) const;
  void Advance(int stage, int stream);
  bool Ready(InstructionRef ref, int stream, RunInstruction* run);
  void Arrive(InstructionRef ref, const RunInstruction& ready);
  void Finish(InstructionRef ref, const RunInstruction& run);
  absl::Status WhereTheyStand() const;

  const v1::Instruction& At(InstructionRef ref) const {
    return inputs_[ref.stage].sequence->instructions(ref.instruction);
  }

  const std::vector<StageInput>& inputs_;
  std::vector<Stage> stages_;
  std::vector<std::vector<RunInstruction>> ran_;
  std::vector<Meeting> meetings_;
  std::map<MeetingKey, int> meeting_of_;   // index in meetings_
  std::vector<std::pair<int, int>> work_;  // stage and stream that may go on
};

}  // namespace terrace
