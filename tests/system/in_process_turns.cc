// SPDX-License-Identifier: Apache-2.0
#include "tests/system/in_process_turns.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "proto/program/allocation_events.h"
#include "proto/program/arena_pages.h"
#include "tests/system/mapped_bytes.h"
#include "tests/system/meeting.h"
#include "tests/system/turns.h"
#include "worker/rank/memory_classes.h"
#include "worker/rank/program_memory.h"
#include "worker/train/initial_state.h"
#include "worker/vm/vm.h"

namespace terrace {
namespace {

using Meetings = std::map<std::string, std::unique_ptr<Meeting>>;

// As ConnectGroups: by index in program.groups, null where the rank is in no instance.
std::vector<std::unique_ptr<Communicator>> JoinGroups(const v1::Program& program, uint32_t rank,
                                                      Meetings* meetings) {
  std::vector<std::unique_ptr<Communicator>> groups;
  for (const v1::Group& group : program.groups()) {
    std::unique_ptr<Communicator>& member = groups.emplace_back();
    const std::vector<uint32_t> ranks = GroupMembers(program.grid(), group, rank);
    if (ranks.empty()) continue;
    const std::string name = absl::StrCat(group.name(), ".", ranks.front());
    std::unique_ptr<Meeting>& meeting = (*meetings)[name];
    if (meeting == nullptr)
      meeting = std::make_unique<Meeting>(name, static_cast<int>(ranks.size()));
    const auto own = std::find(ranks.begin(), ranks.end(), rank);
    member = std::make_unique<Member>(meeting.get(), static_cast<int>(own - ranks.begin()));
  }
  return groups;
}

absl::Status CheckSupported(const v1::Program& program) {
  if (!UsesCaching(program)) return absl::OkStatus();
  return absl::UnimplementedError("in turns only planned programs run; train on threads");
}

}  // namespace

// A rank between its turns.
class TurnsRank {
 public:
  TurnsRank(const JobData& data, const v1::Program& program, uint32_t index, ProgramMemory memory)
      : program_(program),
        index_(index),
        memory_(std::move(memory)),
        rank_{program, CoordinatesOf(program.grid(), index), memory_.regions()},
        dataset_(data),
        io_(TrainIoOf(rank_, dataset_)),
        keeper_(rank_) {}

  absl::Status Prepare(const Tensors& weights, Meetings* meetings) {
    groups_ = JoinGroups(program_, index_, meetings);
    ASSIGN_OR_RETURN(vm_, Vm::Create(program_,
                                     {.threads = static_cast<int>(program_.threads()),
                                      .arenas = memory_.arenas(),
                                      .groups = groups_,
                                      .rank = index_,
                                      .nvme = memory_.nvme()},
                                     &clock_, /*fence=*/nullptr));
    for (const v1::Arena& arena : program_.arenas()) {
      if (std::byte* bytes = memory_.arenas()[arena.id()]; bytes != nullptr)
        std::memset(bytes, 0xff, arena.bytes());
    }
    RETURN_IF_ERROR(FillInitialState(program_, memory_.regions(), 1));
    return LoadWeights(rank_, weights);
  }

  bool restores() const { return vm_->Has("restore"); }
  TurnRank BeginRestore() {
    return {.sequence = vm_->Find("restore"), .io = &nothing_, .fence = &keeper_};
  }
  // What ranks sent so far is of no step.
  void EndRestore() {
    for (const auto& group : groups_) sent_before_.push_back(group ? group->bytes_sent() : 0);
  }

  TurnRank Begin(int64_t step) {
    io_.SetStep(step);
    return {.sequence = vm_->Find("train"), .io = &io_, .fence = &keeper_};
  }
  void End() { AddStats(io_.stats(), &result_); }

  RankResult Finish(int64_t steps, const std::map<uintptr_t, int64_t>& mappings) {
    const auto begin = reinterpret_cast<uintptr_t>(memory_.arenas()[0]);
    uintptr_t end = begin;  // where the guard page begins
    for (auto at = mappings.find(end); at != mappings.end(); at = mappings.find(end))
      end += at->second;
    if (end > begin)
      result_.mapped_bytes = static_cast<int64_t>(end - begin) - AliasBytes(program_.arenas(0));
    AddStates(rank_, &keeper_, &result_);
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g] == nullptr) continue;
      result_.sent_per_step[program_.groups(static_cast<int>(g)).name()] =
          (groups_[g]->bytes_sent() - sent_before_[g]) / steps;
    }
    result_.allocator = PlannedStats(program_);
    return std::move(result_);
  }

 private:
  const v1::Program& program_;
  const uint32_t index_;
  const ProgramMemory memory_;
  const Rank rank_;
  const FixedDataset dataset_;
  TrainIo io_;
  NoIo nothing_;
  GradientKeeper keeper_;
  std::vector<std::unique_ptr<Communicator>> groups_;
  const SystemClock clock_;
  std::unique_ptr<Vm> vm_;            // prepares the program; its threads never run it
  std::vector<int64_t> sent_before_;  // by group
  RankResult result_;
};

TurnsJob::TurnsJob(uint32_t seed) : random_(seed) {}
TurnsJob::~TurnsJob() = default;

absl::StatusOr<std::unique_ptr<TurnsJob>> TurnsJob::Create(const JobData& data,
                                                           const std::vector<v1::Program>& programs,
                                                           uint32_t seed) {
  auto job = std::unique_ptr<TurnsJob>(new TurnsJob(seed));
  for (uint32_t index = 0; index < programs[0].ranks(); ++index) {
    const v1::Program& program = programs[CoordinatesOf(programs[0].grid(), index).stage];
    RETURN_IF_ERROR(CheckSupported(program));
    // The caller's memory, not a rank's: no limits to hold it against.
    MemoryOptions options = {.name = absl::StrCat("turns-", ::getpid(), "-", index), .limits = {}};
    options.nvme.add_paths(std::filesystem::temp_directory_path());
    ASSIGN_OR_RETURN(ProgramMemory memory, ProgramMemory::Reserve(program, std::move(options)));
    job->ranks_.push_back(std::make_unique<TurnsRank>(data, program, index, std::move(memory)));
    RETURN_IF_ERROR(job->ranks_.back()->Prepare(data.weights, &job->meetings_));
  }
  std::vector<TurnRank> turns;
  for (const auto& rank : job->ranks_) {
    if (rank->restores()) turns.push_back(rank->BeginRestore());
  }
  if (!turns.empty()) RETURN_IF_ERROR(RunInTurns(turns, &job->random_));
  for (const auto& rank : job->ranks_) rank->EndRestore();
  return job;
}

absl::Status TurnsJob::Step() {
  std::vector<TurnRank> turns;
  for (const auto& rank : ranks_) turns.push_back(rank->Begin(steps_));
  RETURN_IF_ERROR(RunInTurns(turns, &random_));
  for (const auto& rank : ranks_) rank->End();
  ++steps_;
  return absl::OkStatus();
}

std::vector<RankResult> TurnsJob::Finish() {
  const auto mappings = WritableMappings();
  std::vector<RankResult> results;
  for (const auto& rank : ranks_) results.push_back(rank->Finish(steps_, mappings));
  return results;
}

absl::StatusOr<std::vector<RankResult>> TrainInTurns(const JobData& data,
                                                     const std::vector<v1::Program>& programs,
                                                     int64_t steps, uint32_t seed) {
  ASSIGN_OR_RETURN(const std::unique_ptr<TurnsJob> job, TurnsJob::Create(data, programs, seed));
  for (int64_t step = 0; step < steps; ++step) RETURN_IF_ERROR(job->Step());
  return job->Finish();
}

}  // namespace terrace
