// Rendezvous of instructions of different stages: a send with its receive, the members of a
// collective over stages. Each rendezvous and each other instruction is one event; the order of
// streams and waits of all stages together must have no cycle. Internal to proto/check.
//
// Borrows the programs. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/check/instruction/written.h"
#include "proto/check/value/train.h"
#include "proto/v1/program.pb.h"

namespace terrace::check {

// -1 when there is none.
int SequenceIndex(const v1::Program& program, std::string_view name);

class RendezvousMatching {
 public:
  // Of sequence `index` of every stage, and what of it was written out: empty when there are no
  // loops.
  RendezvousMatching(absl::Span<const v1::Program> stages, int index,
                     std::vector<const WrittenSequence*> written);

  // Matches: the n-th send of a stage to another in a group its n-th receive there, of
  // the same bytes and of the same micro-batch; the n-th collectives of a group over stages.
  absl::Status Match();
  // Lets happen what can. What is left over waits for ever: a deadlock, told as the cycle of those
  // who wait for one another.
  absl::Status Run();

 private:
  struct StageInstruction {
    uint32_t stage = 0;
    int instruction = 0;
  };
  using Channel = std::vector<StageInstruction>;

  const v1::Instruction& At(const StageInstruction& at) const;
  std::string Text(const StageInstruction& at) const;  // rank, instruction, buffer
  size_t Node(const StageInstruction& at) const { return first_[at.stage] + at.instruction; }
  StageInstruction InstructionAt(size_t node) const;

  absl::Status MatchTransfers();
  absl::Status CheckPair(const StageInstruction& send, const StageInstruction& receive) const;
  // Where its stage's loops have it: before them, in one of them or behind.
  enum Part : uint8_t { kBefore, kInLoop, kBehind };
  Part PartOf(const StageInstruction& at) const;
  absl::Status CheckLoopsMatch(const Channel& sends, const Channel& receives) const;
  int64_t MicroBatchFor(const StageInstruction& at, const StageInstruction& other) const;
  absl::Status MatchCollectives();
  absl::Status MatchMembers(const v1::Group& group, uint32_t first, const Channel& of_first,
                            uint32_t stage, const Channel& of_stage);
  void Join(const StageInstruction& a, const StageInstruction& b);

  void BuildOrder();
  // The next instruction of each stream; -1 at its end.
  std::vector<int> NextInStream(const v1::Sequence& sequence, size_t streams) const;
  absl::Status Deadlock(const std::vector<int>& missing) const;
  // An instruction that has not happened and that `node` comes after.
  size_t UnfinishedBefore(size_t node, const std::vector<int>& missing,
                          StageInstruction* via) const;

  const absl::Span<const v1::Program> stages_;
  std::vector<const v1::Sequence*> sequences_;
  const std::vector<const WrittenSequence*> written_;  // by stage; or empty
  std::vector<size_t> first_;  // by stage: the node of its first instruction; and the end
  std::vector<size_t> event_;  // by node: the node that stands for the rendezvous
  std::vector<std::vector<StageInstruction>> rendezvous_;  // by rendezvous: its parties
  std::vector<int> rendezvous_of_;  // by node: index in rendezvous_; -1: it needs no other
  // Edges event -> later event, in compressed rows.
  std::vector<size_t> edge_begin_;
  std::vector<uint32_t> edges_;
  std::vector<int> before_;  // by event: edges into it
};

// The values that are summed over stages are alike. REQUIRES: RendezvousMatching passed.
absl::Status CheckStageSums(absl::Span<const v1::Program> stages,
                            const std::vector<StageFacts>& facts);

}  // namespace terrace::check
