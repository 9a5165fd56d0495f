// SPDX-License-Identifier: Apache-2.0
#include "proto/check/joint.h"

#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "proto/check/refuse.h"
#include "proto/grid.h"

namespace terrace::check {
namespace {

// What must agree between the members of a group at their n-th collective.
struct Signature {
  v1::CollectiveKind kind = v1::COLLECTIVE_UNSPECIFIED;
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;
  int64_t elements = 0;
  bool operator==(const Signature&) const = default;
};

Signature SignatureOf(const v1::Instruction& instruction) {
  const v1::Operand& operand = instruction.operands(0);
  Signature signature = {
      .kind = instruction.collective().kind(), .dtype = operand.dtype(), .elements = 1};
  for (int64_t size : operand.shape()) signature.elements *= size;
  return signature;
}

std::string SignatureText(const Signature& signature) {
  return absl::StrCat(v1::CollectiveKind_Name(signature.kind), " of ", signature.elements, " ",
                      v1::DType_Name(signature.dtype));
}

bool IsCollective(const v1::Instruction& instruction) {
  return instruction.kind_case() == v1::Instruction::kCollective;
}

// One sequence of one stage, with its instructions by stream.
struct StageList {
  const v1::Sequence* sequence = nullptr;
  std::vector<std::vector<int>> streams;
};

StageList MakeStageList(const v1::Program& program, const v1::Sequence& sequence) {
  StageList list = {.sequence = &sequence};
  list.streams.resize(program.streams_size());
  for (int i = 0; i < sequence.instructions_size(); ++i) {
    list.streams[sequence.instructions(i).stream()].push_back(i);
  }
  return list;
}

// How far a rank has come.
struct RankState {
  const StageList* list = nullptr;
  std::vector<size_t> next;  // by stream: position in its list
  std::vector<bool> done;    // by instruction
  std::vector<bool>
      arrived;  // by group: its stream stands at a collective of this group, all waits over
};

// One instance of a group, with the collectives that its members have issued together.
struct Instance {
  int group = 0;
  std::vector<uint32_t> members;
  size_t arrived = 0;
};

class JointRun {
 public:
  JointRun(const v1::Program& program, std::vector<StageList> lists)
      : program_(program), lists_(std::move(lists)), instance_of_(program.groups_size()) {
    const uint32_t ranks = program.ranks();
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const StageList& list = lists_[uint64_t{rank} * lists_.size() / ranks];
      ranks_.push_back({.list = &list,
                        .next = std::vector<size_t>(list.streams.size(), 0),
                        .done = std::vector<bool>(list.sequence->instructions_size(), false),
                        .arrived = std::vector<bool>(program.groups_size(), false)});
    }
    for (int g = 0; g < program.groups_size(); ++g) {
      instance_of_[g].resize(ranks);
      for (uint32_t rank = 0; rank < ranks; ++rank) {
        std::vector<uint32_t> members = GroupMembers(program.grid(), program.groups(g), rank);
        if (members.empty() || members[0] != rank) continue;
        for (uint32_t member : members) instance_of_[g][member] = instances_.size();
        instances_.push_back({.group = g, .members = std::move(members)});
      }
    }
  }

  absl::Status Run() {
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) work_.push_back(rank);
    while (!work_.empty()) {
      const uint32_t rank = work_.back();
      work_.pop_back();
      RETURN_IF_ERROR(Advance(rank));
    }
    for (uint32_t rank = 0; rank < ranks_.size(); ++rank) RETURN_IF_ERROR(CheckFinished(rank));
    return absl::OkStatus();
  }

 private:
  const v1::Instruction* Head(const RankState& state, size_t stream) const {
    const std::vector<int>& list = state.list->streams[stream];
    if (state.next[stream] == list.size()) return nullptr;
    return &state.list->sequence->instructions(list[state.next[stream]]);
  }

  bool Ready(const RankState& state, const v1::Instruction& instruction) const {
    return std::all_of(instruction.waits().begin(), instruction.waits().end(),
                       [&](uint32_t wait) { return state.done[wait]; });
  }

  void Finish(RankState* state, size_t stream) {
    state->done[Head(*state, stream)->id()] = true;
    ++state->next[stream];
  }

  // Runs rank's streams until each is at its end, waits, or stands at a collective.
  absl::Status Advance(uint32_t rank) {
    RankState& state = ranks_[rank];
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t stream = 0; stream < state.next.size(); ++stream) {
        for (const v1::Instruction* head = Head(state, stream);
             head != nullptr && Ready(state, *head); head = Head(state, stream)) {
          if (IsCollective(*head)) {
            RETURN_IF_ERROR(Arrive(rank, *head));
            break;
          }
          Finish(&state, stream);
          moved = true;
        }
      }
    }
    return absl::OkStatus();
  }

  // Rank stands at a collective. The last member to come completes it for all, and all may go on.
  absl::Status Arrive(uint32_t rank, const v1::Instruction& collective) {
    const uint32_t group = collective.collective().group();
    if (ranks_[rank].arrived[group]) return absl::OkStatus();
    ranks_[rank].arrived[group] = true;
    Instance& instance = instances_[instance_of_[group][rank]];
    if (++instance.arrived < instance.members.size()) return absl::OkStatus();
    RETURN_IF_ERROR(CheckAgreement(instance));
    instance.arrived = 0;
    for (uint32_t member : instance.members) {
      RankState& state = ranks_[member];
      state.arrived[group] = false;
      Finish(&state, StreamAt(state, group));
      work_.push_back(member);
    }
    return absl::OkStatus();
  }

  // The stream whose head is a ready collective of `group`. REQUIRES: the rank has arrived there.
  size_t StreamAt(const RankState& state, uint32_t group) const {
    for (size_t stream = 0; stream < state.next.size(); ++stream) {
      const v1::Instruction* head = Head(state, stream);
      if (head != nullptr && IsCollective(*head) && head->collective().group() == group &&
          Ready(state, *head))
        return stream;
    }
    return 0;
  }

  absl::Status CheckAgreement(const Instance& instance) const {
    const RankState& first = ranks_[instance.members[0]];
    const v1::Instruction& expected = *Head(first, StreamAt(first, instance.group));
    for (uint32_t member : instance.members) {
      const RankState& state = ranks_[member];
      const v1::Instruction& other = *Head(state, StreamAt(state, instance.group));
      if (SignatureOf(other) == SignatureOf(expected)) continue;
      return Refuse("rank ", member, ", ", Where(*state.list->sequence, other), ": issues ",
                    SignatureText(SignatureOf(other)), " where rank ", instance.members[0], ", ",
                    Where(*first.list->sequence, expected), ", issues ",
                    SignatureText(SignatureOf(expected)), " in group '",
                    program_.groups(instance.group).name(), "'");
    }
    return absl::OkStatus();
  }

  absl::Status CheckFinished(uint32_t rank) const {
    const RankState& state = ranks_[rank];
    for (size_t stream = 0; stream < state.next.size(); ++stream) {
      const v1::Instruction* head = Head(state, stream);
      if (head == nullptr) continue;
      return Refuse("deadlock: rank ", rank, " waits for ever at ",
                    Where(*state.list->sequence, *head));
    }
    return absl::OkStatus();
  }

  const v1::Program& program_;  // of any stage: groups and ranks are the same in all
  const std::vector<StageList> lists_;
  std::vector<RankState> ranks_;
  std::vector<Instance> instances_;
  std::vector<std::vector<size_t>> instance_of_;  // by group, by rank
  std::vector<uint32_t> work_;                    // ranks that may have something to run
};

absl::Status CheckAgree(absl::Span<const v1::Program> stages) {
  using google::protobuf::util::MessageDifferencer;
  const v1::Program& first = stages[0];
  for (size_t s = 0; s < stages.size(); ++s) {
    const v1::Program& other = stages[s];
    if (other.stage() != s || other.stages() != stages.size() || other.ranks() != first.ranks()) {
      return Refuse("program ", s, " of ", stages.size(), ": says stage ", other.stage(), " of ",
                    other.stages(), " with ", other.ranks(), " ranks, stage 0 has ", first.ranks());
    }
    bool same = other.groups_size() == first.groups_size() &&
                other.sequences_size() == first.sequences_size();
    for (int g = 0; same && g < first.groups_size(); ++g) {
      same = MessageDifferencer::Equals(other.groups(g), first.groups(g));
    }
    for (int q = 0; same && q < first.sequences_size(); ++q) {
      same = other.sequences(q).name() == first.sequences(q).name();
    }
    if (!same) return Refuse("program ", s, ": its groups or sequences are not those of stage 0");
  }
  if (first.ranks() % stages.size() == 0) return absl::OkStatus();
  return Refuse(first.ranks(), " ranks do not divide into ", stages.size(), " stages");
}

}  // namespace

absl::Status CheckCollectiveStreams(const v1::Program& program, const v1::Sequence& sequence) {
  std::vector<int> stream_of(program.groups_size(), -1);
  for (const v1::Instruction& instruction : sequence.instructions()) {
    if (!IsCollective(instruction)) continue;
    int& stream = stream_of[instruction.collective().group()];
    if (stream < 0) stream = static_cast<int>(instruction.stream());
    if (stream != static_cast<int>(instruction.stream())) {
      return Refuse(Where(sequence, instruction), ": runs on stream ", instruction.stream(),
                    ", earlier collectives of its group on stream ", stream,
                    "; a group has one stream");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckJoint(absl::Span<const v1::Program> stages) {
  if (stages.empty()) return Refuse("there are no programs");
  RETURN_IF_ERROR(CheckAgree(stages));
  for (int q = 0; q < stages[0].sequences_size(); ++q) {
    std::vector<StageList> lists;
    for (const v1::Program& program : stages)
      lists.push_back(MakeStageList(program, program.sequences(q)));
    RETURN_IF_ERROR(JointRun(stages[0], std::move(lists)).Run());
  }
  return absl::OkStatus();
}

}  // namespace terrace::check
