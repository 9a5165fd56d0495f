// SPDX-License-Identifier: Apache-2.0
#include "coordinator/control/control.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace terrace {
namespace {

// All that goes by the clock takes seconds; heartbeats come more often, and each is followed by a
// pass.
constexpr absl::Duration kPassAtLeastEvery = absl::Milliseconds(1250);

// Between two passes of a process that runs.
constexpr absl::Duration kPassesApartMax = absl::Milliseconds(2000);

// Between two publications of the stats: passes may come a thousand times a second.
constexpr int64_t kStatsEveryNs = 1'000'000'000;

}  // namespace

absl::StatusOr<PlannedJob> PlannedOf(absl::StatusOr<v1::PlannerAnswer> answer) {
  if (!answer.ok()) return answer.status();
  PlannedJob planned;
  planned.plan = std::move(*answer->mutable_plan());
  for (v1::PlannedProgram& program : *answer->mutable_programs()) {
    planned.programs.push_back({.sha256 = std::move(*program.mutable_sha256()),
                                .bytes = std::move(*program.mutable_bytes())});
  }
  return planned;
}

Control::Control(const Reconciler::Timing& timing, Store& store, const Clock& clock,
                 Planner& planner, const QueueOptions& queue)
    : clock_(clock),
      store_(store),
      planner_(planner),
      reconciler_(timing, store, clock, *this, queue) {}

Control::~Control() { Stop(); }

absl::Status Control::Start() {
  RETURN_IF_ERROR(reconciler_.Load());
  loop_.Start(absl::ZeroDuration(), [this] { return Pass(); });
  return absl::OkStatus();
}

// A process that was stopped (a paused virtual machine, a debugger, memory that came back from
// swap) finds that nobody has said anything for as long as that; what workers have said meanwhile
// it has yet to read. The time that may lie between two passes counts even then: under a load that
// holds up each pass, a worker that is gone is lost all the same, some passes later.
absl::Duration Control::Pass() {
  const absl::Duration apart = absl::Nanoseconds(clock_.MonotonicNanos() - passed_ns_);
  if (passed_ns_ > 0 && apart > kPassesApartMax) {
    log::Warn("this coordinator stood still for ",
              absl::FormatDuration(absl::Trunc(apart, absl::Milliseconds(100))),
              ": workers are not taken for lost for that");
    reconciler_.StoodStill(absl::ToInt64Nanoseconds(apart - kPassAtLeastEvery));
  }
  const Stored stored = StoreSubmitted();
  reconciler_.Pass();  // places them, or says what they wait for
  passed_ns_ = clock_.MonotonicNanos();
  Answer(stored);
  while (!timers_.empty() && timers_.begin()->first <= passed_ns_) {
    const std::function<void()> due = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    due();
  }
  if (stats_ns_ == 0 || passed_ns_ - stats_ns_ >= kStatsEveryNs) PublishStats();
  return kPassAtLeastEvery;
}

void Control::SubmitSoon(SubmittedJob job, std::function<void(absl::StatusOr<v1::Job>)> done) {
  submitted_.push_back(std::move(job));
  submitted_done_.push_back(std::move(done));
}

// Those that came while the last ones were written: the more come, the fewer writes each takes.
Control::Stored Control::StoreSubmitted() {
  Stored stored = {.ids = {}, .done = std::exchange(submitted_done_, {})};
  if (!submitted_.empty()) stored.ids = reconciler_.SubmitAll(std::exchange(submitted_, {}));
  return stored;
}

void Control::Answer(const Stored& stored) {
  for (size_t i = 0; i < stored.ids.size(); ++i) {
    const absl::StatusOr<std::string>& id = stored.ids[i];
    stored.done[i](id.ok() ? reconciler_.Get(*id) : absl::StatusOr<v1::Job>(id.status()));
  }
}

void Control::PublishStats() {
  stats_ns_ = clock_.MonotonicNanos();
  auto stats = std::make_shared<const ControlStats>(reconciler_.Stats());
  absl::MutexLock lock(&stats_mutex_);
  stats_.swap(stats);
}

std::shared_ptr<const ControlStats> Control::PublishedStats() const {
  absl::MutexLock lock(&stats_mutex_);
  return stats_;
}

void Control::CallAfter(absl::Duration delay, std::function<void()> closure) {
  timers_.emplace(clock_.MonotonicNanos() + absl::ToInt64Nanoseconds(delay), std::move(closure));
}

void Control::Close() {
  loop_.Call([this] { reconciler_.Close(); });
  planner_.Stop();
}

void Control::Stop() {
  planner_.Stop();
  loop_.Stop();
  submitted_.clear();
  for (const auto& done : std::exchange(submitted_done_, {}))
    done(absl::UnavailableError("the coordinator is stopping; submit again when it is back"));
}

void Control::Plan(const v1::JobSpec& spec, const Budget& budget, std::weak_ptr<void> wanted,
                   PlanDone done) {
  v1::PlannerRequest request;
  *request.mutable_plan()->mutable_spec() = spec;
  *request.mutable_plan()->mutable_budget() = ToMessage(budget);
  planner_.Start({.request = std::move(request),
                  .size = 0,  // it was submitted long ago
                  .abandoned = [wanted = std::move(wanted)] { return wanted.expired(); },
                  .done =
                      [this, done](absl::StatusOr<v1::PlannerAnswer> answer) {
                        loop_.Post([done, planned = PlannedOf(std::move(answer))]() mutable {
                          done(std::move(planned));
                        });
                      }});
}

namespace {

absl::StatusOr<DescendedJob> DescendedOf(absl::StatusOr<v1::PlannerAnswer> answer) {
  RETURN_IF_ERROR(answer.status());
  DescendedJob descended{.rung = answer->rung(), .change = answer->change()};
  ASSIGN_OR_RETURN(descended.planned, PlannedOf(std::move(answer)));
  return descended;
}

}  // namespace

void Control::Descend(const v1::JobSpec& spec, const Budget& budget, const v1::Plan& plan,
                      std::weak_ptr<void> wanted, DescendDone done) {
  v1::PlannerRequest request;
  *request.mutable_descend()->mutable_spec() = spec;
  *request.mutable_descend()->mutable_budget() = ToMessage(budget);
  *request.mutable_descend()->mutable_plan() = plan;
  planner_.Start({.request = std::move(request),
                  .size = 0,  // its devices wait
                  .abandoned = [wanted = std::move(wanted)] { return wanted.expired(); },
                  .done =
                      [this, done](absl::StatusOr<v1::PlannerAnswer> answer) {
                        loop_.Post([done, descended = DescendedOf(std::move(answer))]() mutable {
                          done(std::move(descended));
                        });
                      }});
}

// ---- workers ----------------------------------------------------------------------------------

void Control::AttachWorker(const std::string& name, uint64_t session,
                           WorkerConnection* connection) {
  workers_[name] = {session, connection};
}

void Control::DetachWorker(const std::string& name, uint64_t session) {
  auto found = workers_.find(name);
  if (found == workers_.end() || found->second.session != session) return;
  workers_.erase(found);
  reconciler_.WorkerGone(name, session);
  v1::LogText lost;
  lost.set_end(true);
  lost.set_error(absl::StrCat("worker ", name, " has disconnected"));
  for (auto& [id, reader] : log_readers_) {
    if (reader.worker == name) reader.sink(lost);
  }
}

void Control::Send(std::string_view worker, const v1::CoordinatorMessage& message) {
  auto found = workers_.find(worker);
  if (found != workers_.end()) found->second.connection->Send(message);
}

// ---- watchers ---------------------------------------------------------------------------------

absl::StatusOr<uint64_t> Control::AddWatcher(std::string_view job, std::function<void()> notify) {
  if (watchers_.size() >= kWatchersMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kWatchersMax, " watchers are connected, the most there may be"));
  }
  const uint64_t id = ++last_id_;
  watchers_[id] = {std::string(job), std::move(notify)};
  return id;
}

void Control::RemoveWatcher(uint64_t id) { watchers_.erase(id); }

void Control::EventsStored(std::string_view job) {
  for (auto& [id, watcher] : watchers_) {
    // Posted, so that a watcher that ends does not change the map under this loop.
    if (watcher.job == job) loop_.Post(watcher.notify);
  }
}

// ---- logs -------------------------------------------------------------------------------------

absl::StatusOr<uint64_t> Control::ReadLog(const v1::LogsRequest& request, LogSink sink) {
  ASSIGN_OR_RETURN(const v1::Job job, reconciler_.Get(request.id()));
  if (job.placement().ranks_size() == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "job ", job.id(), " is ", v1::JobState_Name(job.state()), ": it has not run yet"));
  }
  if (request.rank() >= static_cast<uint32_t>(job.placement().ranks_size())) {
    return absl::NotFoundError(absl::StrCat("job ", job.id(), " has ranks 0 to ",
                                            job.placement().ranks_size() - 1, ", not ",
                                            request.rank()));
  }
  if (log_readers_.size() >= kLogReadersMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kLogReadersMax, " logs are being read, the most there may be"));
  }
  const std::string& worker = job.placement().ranks(static_cast<int>(request.rank())).worker();
  if (!workers_.contains(worker)) {
    return absl::UnavailableError(
        absl::StrCat("worker ", worker, ", which keeps this log, is not connected"));
  }
  const uint64_t id = ++last_id_;
  v1::CoordinatorMessage message;
  v1::ReadLog* read = message.mutable_read_log();
  read->set_request(id);
  read->set_job(job.id());
  read->set_rank(request.rank());
  read->set_follow(request.follow());
  read->set_tail_lines(request.tail_lines());
  read->set_trace(request.trace());
  if (request.has_after()) *read->mutable_after() = request.after();
  log_readers_[id] = {worker, *read, std::move(sink)};
  Send(worker, message);
  return id;
}

void Control::StopLog(uint64_t id) {
  auto found = log_readers_.find(id);
  if (found == log_readers_.end()) return;
  v1::CoordinatorMessage message;
  *message.mutable_read_log() = found->second.request;
  message.mutable_read_log()->set_stop(true);
  Send(found->second.worker, message);
  log_readers_.erase(found);
}

void Control::LogArrived(std::string_view worker, const v1::LogText& text) {
  auto found = log_readers_.find(text.request());
  if (found != log_readers_.end() && found->second.worker == worker) found->second.sink(text);
}

}  // namespace terrace
