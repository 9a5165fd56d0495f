// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/process_planner.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/log.h"
#include "base/memory_cgroup.h"
#include "base/status_macros.h"
#include "coordinator/planning/process.h"

namespace terrace {
namespace {

int64_t MachineBytes() {
  return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
}

std::optional<int64_t> GroupBytes() {
  const auto group = MemoryCgroup::Find(getpid(), {});
  return group.has_value() ? group->LimitBytes() : std::nullopt;
}

ProcessPlanner::Options WithDefaults(ProcessPlanner::Options options) {
  if (options.memory_bytes == 0) options.memory_bytes = PlanShare(MachineBytes(), GroupBytes());
  return options;
}

// A spec that was read is planned, however many wait; there are as many as submissions under way.
bool IsOfAJob(const v1::PlannerRequest& request) {
  return request.has_plan() || request.has_descend();
}

absl::Status Stops() {
  return absl::UnavailableError("the coordinator is stopping; submit again when it is back");
}

}  // namespace

int64_t PlanShare(int64_t machine_bytes, std::optional<int64_t> group_bytes) {
  return std::min(machine_bytes, group_bytes.value_or(machine_bytes)) / (kQuickPlans + kSlowPlans);
}

ProcessPlanner::ProcessPlanner(const Options& options) : options_(WithDefaults(options)) {
  for (int i = 0; i < kQuickPlans + kSlowPlans; ++i) {
    threads_.emplace_back([this] { Run(); });
  }
}

ProcessPlanner::~ProcessPlanner() { Stop(); }

void ProcessPlanner::Start(Work work) {
  absl::Status refused;
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) {
      refused = Stops();
    } else if (!IsOfAJob(work.request) && quick_.size() + slow_.size() >= kPlansQueuedMax) {
      refused = absl::ResourceExhaustedError(
          absl::StrCat(kPlansQueuedMax, " plans wait to be made already: submit again later"));
    } else {
      quick_.push_back({std::move(work), absl::Now()});
      return;
    }
  }
  work.done(refused);
}

void ProcessPlanner::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  std::vector<Task> left;
  {
    absl::MutexLock lock(&mutex_);
    left.swap(quick_);
    std::move(slow_.begin(), slow_.end(), std::back_inserter(left));
    slow_.clear();
  }
  for (Task& task : left) task.work.done(Stops());
}

bool ProcessPlanner::HasTurn() const {
  return stopping_ || (!quick_.empty() && quick_running_ < kQuickPlans) ||
         (!slow_.empty() && slow_running_ < kSlowPlans);
}

ProcessPlanner::Turn ProcessPlanner::TakeTurn() {
  const bool quick = !quick_.empty() && quick_running_ < kQuickPlans;
  std::vector<Task>& waiting = quick ? quick_ : slow_;
  auto next = waiting.begin();  // the oldest
  if (quick && absl::Now() - next->since < kPatience) {
    next = std::min_element(waiting.begin(), waiting.end(),
                            [](const Task& a, const Task& b) { return a.work.size < b.work.size; });
  }
  Turn turn{
      .task = std::move(*next), .lane = quick ? Lane::kQuick : Lane::kSlow, .begun = absl::Now()};
  waiting.erase(next);
  ++(quick ? quick_running_ : slow_running_);
  return turn;
}

void ProcessPlanner::Run() {
  const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return HasTurn(); };
  Idle idle;
  while (true) {
    Turn turn;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&ready));
      if (stopping_) return;
      turn = TakeTurn();
    }
    absl::StatusOr<v1::PlannerAnswer> answer = Do(turn, idle);
    End(std::move(turn), std::move(answer));
  }
}

absl::StatusOr<v1::PlannerAnswer> ProcessPlanner::Do(Turn& turn, Idle& idle) {
  std::unique_ptr<PlannerProcess> process = std::exchange(idle.process, nullptr);
  if (process == nullptr || !process->IsIdle()) {
    ASSIGN_OR_RETURN(process, PlannerProcess::Start(options_.program, ArgumentsOf(options_.roots)));
    idle.asked = 0;
  }
  if (turn.lane == Lane::kSlow) process->Yield();
  ASSIGN_OR_RETURN(v1::PlannerAnswer answer,
                   process->Ask(
                       turn.task.work.request,
                       [&](int64_t held_bytes) { return Watch(turn, held_bytes, *process); },
                       turn.task.work.tell));
  // One that was slow runs behind all others, for good.
  if (turn.lane == Lane::kQuick && ++idle.asked < kAskedMax &&
      process->HeldBytes() <= kIdleBytesMax) {
    idle.process = std::move(process);
  }
  return answer;
}

absl::Status ProcessPlanner::Watch(Turn& turn, int64_t held_bytes, const PlannerProcess& process) {
  const Work& work = turn.task.work;
  if (work.abandoned && work.abandoned()) {
    return absl::CancelledError("nobody waits for this plan any more");
  }
  if (held_bytes > options_.memory_bytes) {
    return absl::FailedPreconditionError(absl::StrCat(
        "planning took more than ", options_.memory_bytes >> 20,
        " MiB of the coordinator's memory and was ended; pin more of `layout`, so that less is "
        "tried, or start the coordinator with a larger --plan-memory"));
  }
  const absl::Duration took = absl::Now() - turn.begun;
  if (took > options_.time) {
    return absl::FailedPreconditionError(absl::StrCat(
        "planning took longer than ", absl::FormatDuration(options_.time),
        " and was ended; pin more of `layout`, so that less is tried, or start the coordinator "
        "with a larger --plan-seconds"));
  }
  absl::MutexLock lock(&mutex_);
  if (stopping_) return Stops();
  if (turn.lane == Lane::kSlow || took < kQuickTime) return absl::OkStatus();
  if (slow_running_ < kSlowPlans && slow_.empty()) {
    turn.lane = Lane::kSlow;
    --quick_running_;
    ++slow_running_;
    process.Yield();
  } else if (!quick_.empty()) {
    turn.again = true;
    return absl::CancelledError("it begins again later");
  }
  return absl::OkStatus();
}

void ProcessPlanner::End(Turn turn, absl::StatusOr<v1::PlannerAnswer> answer) {
  {
    absl::MutexLock lock(&mutex_);
    --(turn.lane == Lane::kQuick ? quick_running_ : slow_running_);
    if (turn.again && !answer.ok()) {
      slow_.push_back(std::move(turn.task));
      return;
    }
  }
  if (absl::IsAborted(answer.status())) log::Warn("a plan failed: ", answer.status().message());
  if (answer.ok() && answer->code() != 0) {
    answer = absl::Status(static_cast<absl::StatusCode>(answer->code()), answer->message());
  }
  turn.task.work.done(std::move(answer));
}

}  // namespace terrace
