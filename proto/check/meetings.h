// Where instructions of different stages meet: a send and its receive, a collective over stages.
// Each meeting and each other instruction is one event; the order of streams and waits of all
// stages together must have no cycle. Internal to proto/check.
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

class Meetings {
 public:
  // Of sequence `index` of every stage, and what of it was written out: empty when there are no
  // loops.
  Meetings(absl::Span<const v1::Program> stages, int index,
           std::vector<const WrittenSequence*> written);

  // Finds who meets whom: the n-th send of a stage to another in a group its n-th receive there, of
  // the same bytes and of the same micro-batch; the n-th collectives of a group over stages.
  absl::Status Match();
  // Lets happen what can. What is left over waits for ever: a deadlock, told as the cycle of those
  // who wait for one another.
  absl::Status Run();

 private:
  struct Place {
    uint32_t stage = 0;
    int instruction = 0;
  };
  using Channel = std::vector<Place>;

  const v1::Instruction& At(const Place& place) const;
  std::string Text(const Place& place) const;  // rank, instruction, buffer
  size_t Node(const Place& place) const { return first_[place.stage] + place.instruction; }
  Place PlaceOf(size_t node) const;

  absl::Status MatchTransfers();
  absl::Status CheckPair(const Place& send, const Place& receive) const;
  // Where its stage's loops have it: before them, in one of them or behind.
  enum Part : uint8_t { kBefore, kInLoop, kBehind };
  Part PartOf(const Place& place) const;
  absl::Status CheckLoopsMeet(const Channel& sends, const Channel& receives) const;
  int64_t MicroBatchFor(const Place& place, const Place& other) const;
  absl::Status MatchCollectives();
  absl::Status MatchMembers(const v1::Group& group, uint32_t first, const Channel& of_first,
                            uint32_t stage, const Channel& of_stage);
  void Meet(const Place& a, const Place& b);

  void BuildOrder();
  // The next instruction of each stream; -1 at its end.
  std::vector<int> NextInStream(const v1::Sequence& sequence, size_t streams) const;
  absl::Status Deadlock(const std::vector<int>& missing) const;
  // An instruction that has not happened and that `node` comes after.
  size_t UnfinishedBefore(size_t node, const std::vector<int>& missing, Place* via) const;

  const absl::Span<const v1::Program> stages_;
  std::vector<const v1::Sequence*> sequences_;
  const std::vector<const WrittenSequence*> written_;  // by stage; or empty
  std::vector<size_t> first_;            // by stage: the node of its first instruction; and the end
  std::vector<size_t> event_;            // by node: the node that stands for the meeting
  std::vector<std::vector<Place>> met_;  // by meeting: who meets there; see meeting_
  std::vector<int> meeting_;             // by node: index in met_, -1 when it meets nobody
  // Edges event -> later event, in compressed rows.
  std::vector<size_t> edge_begin_;
  std::vector<uint32_t> edges_;
  std::vector<int> before_;  // by event: edges into it
};

// The values that meet in sums over stages are alike. REQUIRES: Meetings passed.
absl::Status CheckStageSums(absl::Span<const v1::Program> stages,
                            const std::vector<StageFacts>& facts);

}  // namespace terrace::check
