// SPDX-License-Identifier: Apache-2.0
#include "worker/reporting/reporter.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/log.h"
#include "base/log_listener.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "worker/reporting/failure.h"

namespace terrace {
namespace {

constexpr absl::Duration kFlushTimeout = absl::Seconds(2);

}  // namespace

Reporter::Reporter(const v1::RankConfig& config, const Clock* clock)
    : config_(config), clock_(clock) {
  report_.set_job(config.job());
  report_.set_epoch(config.epoch());
  report_.set_rank(config.rank());
  report_.set_pid(::getpid());
  report_.set_state(v1::RANK_STARTED);
  report_.mutable_progress()->set_steps(config.spec().train().steps());
}

void Reporter::SetLink(LinkServer* link) {
  absl::MutexLock lock(&mutex_);
  link_ = link;
  metrics_told_ns_ = clock_->MonotonicNanos();
  Tell({.report = NewReport()});
}

void Reporter::SetFlight(FlightWriter* flight) {
  absl::MutexLock lock(&mutex_);
  flight_ = flight;
}

void Reporter::SetState(v1::RankState state) {
  absl::MutexLock lock(&mutex_);
  if (ended_) return;
  report_.set_state(state);
  log::Info(v1::RankState_Name(state));
  Tell({.report = NewReport()});
}

void Reporter::SetActivity(std::string_view text, double fraction) {
  absl::MutexLock lock(&mutex_);
  report_.mutable_progress()->set_activity(
      text.empty() ? "" : absl::StrFormat("%s %.0f %%", CleanLine(text), fraction * 100));
  v1::JobEvent event = NewEvent();
  event.mutable_activity()->set_text(CleanLine(text));
  event.mutable_activity()->set_fraction(fraction);
  Tell({.report = NewReport(), .event = std::move(event)});
}

void Reporter::SetMemory(int64_t arena_bytes, int64_t external_bytes, int64_t driver_bytes) {
  absl::MutexLock lock(&mutex_);
  report_.mutable_progress()->set_arena_bytes(arena_bytes);
  report_.mutable_progress()->set_external_bytes(external_bytes);
  report_.mutable_progress()->set_driver_bytes(driver_bytes);
}

void Reporter::Warn(std::string_view text) {
  log::WarnInLogOnly(text);
  TellWarning(text);
}

void Reporter::TellWarning(std::string_view text) {
  absl::MutexLock lock(&mutex_);
  if (ended_) return;
  v1::JobEvent event = NewEvent();
  event.mutable_warning()->set_rank(config_.rank());
  event.mutable_warning()->set_text(CleanText(text));
  Tell({.event = std::move(event)});
}

void Reporter::Resumed(int64_t step, int64_t tokens, std::string_view checkpoint) {
  absl::MutexLock lock(&mutex_);
  v1::Progress* progress = report_.mutable_progress();
  progress->set_step(step);
  progress->set_tokens(tokens);
  progress->set_checkpoint_step(step);
  progress->set_checkpoint(std::string(checkpoint));
  log::Info("resumes after step ", step, " from ", std::string(checkpoint));
}

void Reporter::Step(const v1::StepEvent& step, const v1::RankMetrics& metrics, bool log,
                    std::string_view more) {
  if (log) LogStep(step, more);
  absl::MutexLock lock(&mutex_);
  if (ended_) return;
  UpdateProgress(step);
  LinkNews news;
  const int64_t now_ns = clock_->MonotonicNanos();
  if (step.step() == config_.spec().train().steps() ||
      now_ns - metrics_told_ns_ >= kMetricsIntervalNs) {
    news.metrics = metrics;
    metrics_told_ns_ = now_ns;
  }
  if (log && config_.rank() == 0) {
    v1::JobEvent& event = news.event.emplace();
    event.set_unix_ms(clock_->UnixMillis());
    *event.mutable_step() = step;
    KeepStep(event);  // without the job, whose name may be long
    event.set_job(config_.job());
  }
  if (!news.event.has_value() && !news.metrics.has_value()) return;
  news.report = NewReport();
  Tell(std::move(news));
}

void Reporter::UpdateProgress(const v1::StepEvent& step) {
  v1::Progress* progress = report_.mutable_progress();
  progress->set_step(step.step());
  progress->set_loss(step.loss());
  progress->set_grad_norm(step.grad_norm());
  progress->set_tokens_per_second(step.tokens_per_second());
  progress->set_step_seconds(step.step_seconds());
  progress->set_learning_rate(step.learning_rate());
  progress->set_tokens(step.tokens());
  progress->set_loss_scale(step.loss_scale());
  progress->set_skipped_steps(step.skipped_steps());
}

void Reporter::LogStep(const v1::StepEvent& step, std::string_view more) const {
  log::Info(absl::StrFormat("step %d of %d  loss %.4f  grad norm %.3f  %.0f tokens/s%s%s",
                            step.step(), config_.spec().train().steps(), step.loss(),
                            step.grad_norm(), step.tokens_per_second(), Absl(more),
                            step.skipped() ? "  skipped" : ""));
}

void Reporter::Best(int64_t step, double loss) {
  absl::MutexLock lock(&mutex_);
  report_.mutable_progress()->set_best_eval_loss(loss);
  report_.mutable_progress()->set_best_eval_step(step);
}

void Reporter::Eval(const v1::EvalEvent& eval, std::string_view more) {
  absl::MutexLock lock(&mutex_);
  report_.mutable_progress()->set_eval_loss(eval.loss());
  report_.mutable_progress()->set_eval_step(eval.step());
  const bool pairs = config_.spec().train().has_preference();
  log::Info(absl::StrFormat("step %d  validation loss %.4f over %d %s%s%s", eval.step(),
                            eval.loss(), eval.tokens(), pairs ? "pairs" : "tokens", Absl(more),
                            eval.best() ? "  the best so far" : ""));
  v1::JobEvent event = NewEvent();
  *event.mutable_eval() = eval;
  Tell({.report = NewReport(), .event = std::move(event)});
}

void Reporter::Checkpoint(const v1::CheckpointEvent& checkpoint) {
  absl::MutexLock lock(&mutex_);
  report_.mutable_progress()->set_checkpoint_step(checkpoint.step());
  report_.mutable_progress()->set_checkpoint(checkpoint.path());
  report_.mutable_progress()->set_checkpoint_unix_ms(clock_->UnixMillis());
  log::Info(absl::StrFormat("checkpoint %s  %.2f s, training waited %.3f s", checkpoint.path(),
                            checkpoint.seconds(), checkpoint.stall_seconds()));
  v1::JobEvent event = NewEvent();
  *event.mutable_checkpoint() = checkpoint;
  Tell({.report = NewReport(), .event = std::move(event)});
}

void Reporter::End(const absl::Status& status, bool stopped_early, int exit_code) {
  absl::MutexLock end(&end_mutex_);
  LinkServer* link = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(ended_, true)) return;
    report_.set_state(status.ok() ? v1::RANK_SUCCEEDED : v1::RANK_FAILED);
    report_.set_reason(ReasonOf(status));
    report_.set_message(CleanText(Std(status.message())));
    report_.set_stopped_early(stopped_early);
    report_.set_exit_code(exit_code);
    if (status.ok()) {
      log::Info(v1::RankState_Name(report_.state()), stopped_early ? ", stopped early" : "");
    } else {
      log::Error(v1::Reason_Name(report_.reason()), ": ", report_.message());
    }
    WriteExitFile();
    Tell({.report = NewReport()});
    link = link_;
  }
  // Not under the lock: other threads may tell meanwhile. A process that trains ends without taking
  // the link away.
  if (link != nullptr) link->Flush(kFlushTimeout);
}

v1::RankReport Reporter::NewReport() {
  report_.mutable_progress()->set_updated_unix_ms(clock_->UnixMillis());
  return report_;
}

v1::JobEvent Reporter::NewEvent() const {
  v1::JobEvent event;
  event.set_job(config_.job());
  event.set_unix_ms(clock_->UnixMillis());
  return event;
}

void Reporter::KeepStep(const v1::JobEvent& event) {
  if (flight_ == nullptr || link_ == nullptr) return;
  char bytes[kFlightStepBytesMax];
  const size_t size = event.ByteSizeLong();
  if (size > sizeof bytes || !event.SerializeToArray(bytes, sizeof bytes)) return;
  flight_->KeepStep(event.step().step(), {bytes, size});
}

// Events are of the job, not of the rank: one rank tells them. Warnings name theirs.
void Reporter::Tell(LinkNews news) {
  if (link_ == nullptr) return;
  if (config_.rank() != 0 && news.event.has_value() && !news.event->has_warning())
    news.event.reset();
  link_->Tell(std::move(news));
}

void Reporter::WriteExitFile() {
  if (config_.run_directory().empty()) return;
  const std::string path = absl::StrCat(config_.run_directory(), "/exit.pb");
  absl::Status written = WriteSyncedFile(path + ".new", report_.SerializeAsString());
  if (written.ok()) written = Rename(path + ".new", path);
  if (!written.ok())
    log::WarnInLogOnly(absl::StrCat("cannot leave the outcome: ", written.message()));
}

}  // namespace terrace
