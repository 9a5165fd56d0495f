// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/joint_run.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/grid.h"

namespace terrace {
namespace {

absl::Status CheckInstruction(const v1::Program& program, const v1::Instruction& instruction,
                              int index) {
  const auto refuse = [&](const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrCat("stage ", program.stage(), ", instruction ", index, ": ", what));
  };
  if (instruction.stream() >= static_cast<uint32_t>(program.streams_size())) {
    return refuse(absl::StrCat("stream ", instruction.stream(), " does not exist"));
  }
  for (uint32_t wait : instruction.waits()) {
    if (wait >= static_cast<uint32_t>(index)) {
      return refuse(absl::StrCat("waits for ", wait, ", which is not before it"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status JointRun::Run() {
  stages_.resize(inputs_.size());
  ran_.resize(inputs_.size());
  for (int stage = 0; stage < static_cast<int>(inputs_.size()); ++stage) {
    RETURN_IF_ERROR(Arrange(stage));
  }
  while (!work_.empty()) {
    const auto [stage, stream] = work_.back();
    work_.pop_back();
    Advance(stage, stream);
  }
  return WhereTheyStand();
}

absl::Status JointRun::Arrange(int stage) {
  const v1::Program& program = *inputs_[stage].program;
  const int size = inputs_[stage].sequence->instructions_size();
  stages_[stage].streams.resize(program.streams_size());
  stages_[stage].meeting.assign(size, -1);
  stages_[stage].waiting.resize(size);
  ran_[stage].resize(size);
  std::map<MeetingKey, uint32_t> counts;
  for (int i = 0; i < size; ++i) {
    const v1::Instruction& instruction = inputs_[stage].sequence->instructions(i);
    RETURN_IF_ERROR(CheckInstruction(program, instruction, i));
    stages_[stage].streams[instruction.stream()].instructions.push_back(i);
    FindMeeting({stage, i}, &counts);
  }
  for (int stream = 0; stream < program.streams_size(); ++stream) work_.push_back({stage, stream});
  return absl::OkStatus();
}

void JointRun::FindMeeting(InstructionRef ref, std::map<MeetingKey, uint32_t>* counts) {
  const v1::Program& program = *inputs_[ref.stage].program;
  const v1::Instruction& instruction = At(ref);
  const int participants = Participants(program, instruction);
  if (participants < 2) return;
  MeetingKey key = {instruction.collective().group(), 0, 0, 0};
  if (instruction.has_transfer()) {
    const v1::TransferOp& op = instruction.transfer();
    key = {op.group(), program.stage(), op.peer_stage(), 0};
    if (op.kind() == v1::RECEIVE) std::swap(key[1], key[2]);
  }
  key[3] = (*counts)[key]++;
  const auto [found, is_new] = meeting_of_.try_emplace(key, static_cast<int>(meetings_.size()));
  if (is_new) meetings_.push_back({.expected = participants});
  stages_[ref.stage].meeting[ref.instruction] = found->second;
}

// Stages among those given that take part in the instruction.
int JointRun::Participants(const v1::Program& program, const v1::Instruction& instruction) const {
  if (instruction.has_transfer()) {
    const auto is_peer = [&](const StageInput& input) {
      return input.program->stage() == instruction.transfer().peer_stage();
    };
    return std::any_of(inputs_.begin(), inputs_.end(), is_peer) ? 2 : 1;
  }
  if (!instruction.has_collective()) return 1;
  const v1::Group& group = program.groups(instruction.collective().group());
  if (!HasAxis(group, v1::PIPELINE)) return 1;
  return static_cast<int>(std::count_if(
      inputs_.begin(), inputs_.end(),
      [&](const StageInput& input) { return HasStage(group, input.program->stage()); }));
}

void JointRun::Advance(int stage, int index) {
  Stream& stream = stages_[stage].streams[index];
  while (stream.next < stream.instructions.size() && !stream.arrived) {
    const InstructionRef ref = {stage, stream.instructions[stream.next]};
    RunInstruction run;
    if (!Ready(ref, index, &run)) return;
    if (stages_[stage].meeting[ref.instruction] >= 0) {
      stream.arrived = true;
      Arrive(ref, run);
      return;
    }
    run.end_seconds = run.start_seconds + inputs_[stage].seconds[ref.instruction];
    Finish(ref, run);
  }
}

// True, with its start and what it waited for last, when all that comes before it has run.
bool JointRun::Ready(InstructionRef ref, int stream, RunInstruction* run) {
  run->start_seconds = 0;
  const auto after = [&](int instruction) {
    const double end = ran_[ref.stage][instruction].end_seconds;
    if (end <= run->start_seconds) return;
    run->start_seconds = end;
    run->after = {ref.stage, instruction};
  };
  for (uint32_t wait : At(ref).waits()) {
    if (!ran_[ref.stage][wait].ran()) {
      stages_[ref.stage].waiting[wait].push_back(stream);
      return false;
    }
  }
  const Stream& own = stages_[ref.stage].streams[stream];
  if (own.next > 0) after(own.instructions[own.next - 1]);
  for (uint32_t wait : At(ref).waits()) after(static_cast<int>(wait));
  return true;
}

void JointRun::Arrive(InstructionRef ref, const RunInstruction& ready) {
  Meeting& meeting = meetings_[stages_[ref.stage].meeting[ref.instruction]];
  meeting.members.push_back(ref);
  meeting.seconds = std::max(meeting.seconds, inputs_[ref.stage].seconds[ref.instruction]);
  if (ready.start_seconds > meeting.start) {
    meeting.start = ready.start_seconds;
    meeting.after = ready.after;
  }
  if (static_cast<int>(meeting.members.size()) < meeting.expected) return;
  for (const InstructionRef member : meeting.members) {
    const int stream = static_cast<int>(At(member).stream());
    stages_[member.stage].streams[stream].arrived = false;
    Finish(member, {.start_seconds = meeting.start,
                    .end_seconds = meeting.start + meeting.seconds,
                    .after = meeting.after});
    work_.push_back({member.stage, stream});
  }
}

void JointRun::Finish(InstructionRef ref, const RunInstruction& run) {
  ran_[ref.stage][ref.instruction] = run;
  ++stages_[ref.stage].streams[At(ref).stream()].next;
  for (int stream : stages_[ref.stage].waiting[ref.instruction]) {
    work_.push_back({ref.stage, stream});
  }
}

absl::Status JointRun::WhereTheyStand() const {
  std::string blocked;
  for (size_t stage = 0; stage < stages_.size(); ++stage) {
    const auto first = std::find_if(ran_[stage].begin(), ran_[stage].end(),
                                    [](const RunInstruction& run) { return !run.ran(); });
    if (first == ran_[stage].end()) continue;
    const int index = static_cast<int>(first - ran_[stage].begin());
    absl::StrAppend(&blocked, blocked.empty() ? "" : ", ", "stage ",
                    inputs_[stage].program->stage(), " at instruction ", index, " (",
                    At({static_cast<int>(stage), index}).text(), ")");
  }
  if (blocked.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("the stages wait for each other: ", blocked));
}

}  // namespace terrace
