// SPDX-License-Identifier: Apache-2.0
#include "coordinator/simulator/joint_run.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/program/grid.h"

namespace terrace {
namespace {

absl::Status CheckInstruction(const StageInput& input, int index) {
  const v1::Program& program = *input.program;
  const v1::Instruction& instruction = input.At(index);
  const auto refuse = [&](const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrCat("stage ", program.stage(), ", instruction ", index, ": ", what));
  };
  if (instruction.stream() >= static_cast<uint32_t>(program.streams_size())) {
    return refuse(absl::StrCat("stream ", instruction.stream(), " does not exist"));
  }
  for (const uint32_t wait : input.order.WaitsOf(index)) {
    if (wait >= static_cast<uint32_t>(index)) {
      return refuse(absl::StrCat("waits for ", wait, ", which is not before it"));
    }
  }
  return absl::OkStatus();
}

std::vector<const v1::Program*> ProgramsOf(const std::vector<StageInput>& stages) {
  std::vector<const v1::Program*> programs;
  for (const StageInput& stage : stages) programs.push_back(stage.program);
  return programs;
}

}  // namespace

JointRun::JointRun(const std::vector<StageInput>& stages, const v1::HardwareProfile& profile)
    : inputs_(stages), pace_(profile, ProgramsOf(stages)) {}

absl::Status JointRun::Run() {
  stages_.resize(inputs_.size());
  ran_.resize(inputs_.size());
  nodes_.resize(pace_.nodes());
  for (int stage = 0; stage < static_cast<int>(inputs_.size()); ++stage) {
    RETURN_IF_ERROR(Arrange(stage));
  }
  for (size_t i = 0; i < rendezvous_.size(); ++i) {
    tasks_.push_back({.rendezvous = static_cast<int>(i)});
  }
  first_rendezvous_ = static_cast<int>(tasks_.size() - rendezvous_.size());
  StartAll();
  while (!ends_.empty()) {
    const auto [when, task, version] = ends_.top();
    ends_.pop();
    if (tasks_[task].version != version) continue;  // dated anew since
    now_ = when;
    Finish(task);
    StartAll();
  }
  return WhereTheyStand();
}

// Starts what is ready now, then dates what that has slowed down or sped up.
void JointRun::StartAll() {
  while (!work_.empty()) {
    const auto [stage, stream] = work_.back();
    work_.pop_back();
    Advance(stage, stream);
  }
  for (Node& node : nodes_) {
    if (node.changed) Date(&node);
  }
}

absl::Status JointRun::Arrange(int stage) {
  const v1::Program& program = *inputs_[stage].program;
  const int size = inputs_[stage].size();
  stages_[stage].streams.resize(program.streams_size());
  stages_[stage].rendezvous.assign(size, -1);
  stages_[stage].waiting.resize(size);
  ran_[stage].resize(size);
  std::map<RendezvousKey, uint32_t> counts;
  for (int i = 0; i < size; ++i) {
    RETURN_IF_ERROR(CheckInstruction(inputs_[stage], i));
    stages_[stage].streams[inputs_[stage].At(i).stream()].instructions.push_back(i);
    FindRendezvous({stage, i}, &counts);
  }
  for (int stream = 0; stream < program.streams_size(); ++stream) {
    stages_[stage].streams[stream].task = static_cast<int>(tasks_.size());
    tasks_.emplace_back();
    work_.push_back({stage, stream});
  }
  return absl::OkStatus();
}

void JointRun::FindRendezvous(InstructionRef ref, std::map<RendezvousKey, uint32_t>* counts) {
  const v1::Program& program = *inputs_[ref.stage].program;
  const v1::Instruction& instruction = At(ref);
  const int participants = Participants(program, instruction);
  if (participants < 2) return;
  RendezvousKey key = {instruction.collective().group(), 0, 0, 0};
  if (instruction.has_transfer()) {
    const v1::TransferOp& op = instruction.transfer();
    key = {op.group(), program.stage(), op.peer_stage(), 0};
    if (op.kind() == v1::RECEIVE) std::swap(key[1], key[2]);
  }
  key[3] = (*counts)[key]++;
  const auto [found, is_new] =
      rendezvous_of_.try_emplace(key, static_cast<int>(rendezvous_.size()));
  if (is_new) rendezvous_.push_back({.expected = participants});
  stages_[ref.stage].rendezvous[ref.instruction] = found->second;
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
  if (stream.busy || stream.next >= stream.instructions.size()) return;
  const InstructionRef ref = {stage, stream.instructions[stream.next]};
  RunInstruction run;
  if (!Ready(ref, index, &run)) return;
  stream.busy = true;
  if (stages_[stage].rendezvous[ref.instruction] >= 0) {
    Arrive(ref, run);
    return;
  }
  tasks_[stream.task].alone = ref;
  Start(stream.task, run, Alone(ref, run));
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
  const std::span<const uint32_t> waits = inputs_[ref.stage].order.WaitsOf(ref.instruction);
  for (const uint32_t wait : waits) {
    if (!ran_[ref.stage][wait].ran()) {
      stages_[ref.stage].waiting[wait].push_back(stream);
      return false;
    }
  }
  const Stream& own = stages_[ref.stage].streams[stream];
  if (own.next > 0) after(own.instructions[own.next - 1]);
  for (const uint32_t wait : waits) after(static_cast<int>(wait));
  return true;
}

// Its seconds when nothing runs beside it.
double JointRun::Alone(InstructionRef ref, const RunInstruction& run) const {
  const double seconds = inputs_[ref.stage].seconds[ref.instruction];
  const bool woken = run.after.stage == ref.stage && At(run.after).stream() != At(ref).stream();
  return woken ? seconds + inputs_[ref.stage].wake[ref.instruction] : seconds;
}

void JointRun::Arrive(InstructionRef ref, const RunInstruction& ready) {
  const int index = stages_[ref.stage].rendezvous[ref.instruction];
  Rendezvous& rendezvous = rendezvous_[index];
  rendezvous.members.push_back(ref);
  rendezvous.seconds = std::max(rendezvous.seconds, Alone(ref, ready));
  if (ready.start_seconds > rendezvous.start) {
    rendezvous.start = ready.start_seconds;
    rendezvous.after = ready.after;
  }
  if (static_cast<int>(rendezvous.members.size()) < rendezvous.expected) return;
  Start(first_rendezvous_ + index, {.start_seconds = rendezvous.start, .after = rendezvous.after},
        rendezvous.seconds);
}

absl::Span<const InstructionRef> JointRun::Members(const Task& task) const {
  if (task.rendezvous < 0) return absl::MakeConstSpan(&task.alone, 1);
  return rendezvous_[task.rendezvous].members;
}

void JointRun::Start(int index, const RunInstruction& run, double seconds) {
  Task& task = tasks_[index];
  task.start = run.start_seconds;
  task.after = run.after;
  task.left = seconds;
  task.since = now_;
  task.rate = 0;
  Count(index, 1);
}

void JointRun::Finish(int index) {
  Count(index, -1);
  Task& task = tasks_[index];
  ++task.version;
  for (const InstructionRef member : Members(task)) {
    FinishOne(member, {.start_seconds = task.start, .end_seconds = now_, .after = task.after});
  }
}

void JointRun::FinishOne(InstructionRef ref, const RunInstruction& run) {
  ran_[ref.stage][ref.instruction] = run;
  const int index = static_cast<int>(At(ref).stream());
  Stream& stream = stages_[ref.stage].streams[index];
  stream.busy = false;
  ++stream.next;
  work_.push_back({ref.stage, index});
  for (const int waiting : stages_[ref.stage].waiting[ref.instruction]) {
    work_.push_back({ref.stage, waiting});
  }
}

// Adds the task to what runs on its nodes, or takes it away.
void JointRun::Count(int index, int sign) {
  for (const InstructionRef member : Members(tasks_[index])) {
    const Work work = WorkAt(member);
    Stage& stage = stages_[member.stage];
    stage.running[static_cast<int>(work)] += sign;
    stage.contention += sign * inputs_[member.stage].contention[member.instruction];
    if (stage.running[static_cast<int>(Work::kCommunication)] == 0) stage.contention = 0;
    Node& node = nodes_[pace_.NodeOf(member.stage)];
    pace_.Count(member.stage, work, sign, &node.load);
    node.changed = true;
    const auto found = std::find(node.tasks.begin(), node.tasks.end(), index);
    if (sign > 0 && found == node.tasks.end()) node.tasks.push_back(index);
    if (sign < 0 && found != node.tasks.end()) node.tasks.erase(found);
  }
}

double JointRun::RateOf(InstructionRef ref) const {
  const Work work = WorkAt(ref);
  const double beside =
      pace_.Beside(work, stages_[ref.stage].running, stages_[ref.stage].contention);
  if (!pace_.NeedsCores(ref.stage, work)) return beside;
  return beside * pace_.CoreShare(ref.stage, nodes_[pace_.NodeOf(ref.stage)].load);
}

void JointRun::Date(Node* node) {
  node->changed = false;
  for (const int index : node->tasks) {
    Task& task = tasks_[index];
    double rate = 1;
    for (const InstructionRef member : Members(task)) rate = std::min(rate, RateOf(member));
    if (rate == task.rate) continue;
    task.left = std::max(0.0, task.left - (now_ - task.since) * task.rate);
    task.since = now_;
    task.rate = rate;
    ends_.push({now_ + task.left / rate, index, ++task.version});
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
