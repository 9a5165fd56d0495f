// SPDX-License-Identifier: Apache-2.0
#include "worker/train/trainer.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "proto/program/grid.h"
#include "worker/reporting/failure.h"
#include "worker/train/trace.h"
#include "worker/vm/dynamic_memory.h"

namespace terrace {

namespace {

Coordinates PlaceOf(const TrainerParts& parts) {
  return CoordinatesOf(parts.program->grid(), parts.config->rank());
}

int64_t DataRank(const TrainerParts& parts) {
  return DataIndex(parts.program->grid(), PlaceOf(parts));
}

// For logs.
std::string TextOf(const std::optional<PairStats>& pairs) {
  if (!pairs.has_value()) return "";
  return absl::StrFormat("  accuracy %.3f  margin %.6f", pairs->accuracy, pairs->margin);
}

kernels::TokenShare ShareOfTokens(const TrainerParts& parts) {
  return {.ranks = AxisSize(parts.program->grid(), v1::CONTEXT),
          .index = PlaceOf(parts).context,
          .zigzag = parts.program->rules().context_zigzag()};
}

}  // namespace

Trainer::Trainer(const TrainerParts& parts)
    : parts_(parts),
      spec_(parts.config->spec()),
      rules_(parts.program->rules()),
      sequences_(*parts.program),
      train_io_(rules_, *parts.dataset, DataRank(parts), ShareOfTokens(parts)),
      eval_io_(rules_, *parts.dataset, DataRank(parts), ShareOfTokens(parts)),
      validation_(rules_),
      metrics_(parts.metrics) {}

absl::StatusOr<bool> Trainer::Run(int64_t start, const TrainingState& training) {
  train_io_.loss_scale().Resume(training.loss_scale);
  validation_.Resume(training.validation);
  std::optional<Trace> trace;
  if (!parts_.config->trace_path().empty()) trace.emplace(*parts_.program, parts_.config->rank());
  int64_t step = start;
  tokens_ = parts_.dataset->TrainTokens(0, start, GlobalBatch(rules_));
  RETURN_IF_ERROR(Restore());
  bool stop = false;
  for (; step < rules_.steps() && !stop && !validation_.exhausted(); ++step) {
    const int64_t start_ns = parts_.clock->MonotonicNanos();
    RETURN_IF_ERROR(Step(step, trace.has_value()));
    ASSIGN_OR_RETURN(stop, AgreeToStop());
    Report(step + 1, (parts_.clock->MonotonicNanos() - start_ns) * 1e-9);
    if (trace) {
      const bool added = trace->Add(*parts_.vm->Find(sequences_.Of(length_).name), step);
      if (!added) log::Warn("the trace ends before step ", step + 1, ", for which it has no room");
      const bool last =
          stop || step + 1 == std::min(rules_.steps(), start + parts_.config->trace_steps());
      if (!added || last) {
        const absl::Status written = trace->Write(parts_.config->trace_path());
        if (!written.ok()) log::Warn(written.message());  // training goes on without
        trace.reset();
      }
    }
    if (stop) continue;
    if (Due(spec_.train().eval_every_steps(), step + 1)) RETURN_IF_ERROR(Evaluate(step + 1));
    // Of a job whose losses were never finite there is nothing to keep.
    const bool keeps = !NeverFinite(step + 1);
    const bool best = spec_.checkpoint().keep_best() && validation_.state().best_step == step + 1;
    if (keeps && (best || Due(spec_.checkpoint().every_steps(), step + 1)))
      StartCheckpoint(step + 1);
  }
  const bool complete = step >= rules_.steps() || validation_.exhausted();
  if (step > start) RETURN_IF_ERROR(CheckEnd(step, complete));
  if (complete && step > start && evaluated_step_ != step) RETURN_IF_ERROR(Evaluate(step));
  if (step > start) RETURN_IF_ERROR(WriteLastCheckpoint(step));
  return !complete;
}

absl::Status Trainer::Step(int64_t step, bool traced) {
  const int64_t batch = GlobalBatch(rules_);
  length_ = parts_.dataset->TrainLength(step, batch);
  if (!sequences_.Has(length_)) {
    return absl::InternalError(
        absl::StrCat("the program trains on no samples of ", length_, " tokens"));
  }
  train_io_.SetStep(step);
  parts_.flight->SetStep(step + 1);
  parts_.flight->Enter(FlightActivity::kStep);
  RETURN_IF_ERROR(parts_.vm->Run(sequences_.Of(length_).name, &train_io_, traced));
  parts_.flight->StepDone();
  step_tokens_ = parts_.dataset->TrainTokens(step, step + 1, batch);
  tokens_ += step_tokens_;
  return CheckFinite(step + 1);
}

// The statistics are sums over all ranks, so that all ranks come to the same end here.
absl::Status Trainer::CheckFinite(int64_t steps_done) {
  const LossScale& loss_scale = train_io_.loss_scale();
  const bool finite = std::isfinite(train_io_.stats().loss);
  lost_in_a_row_ = finite ? 0 : lost_in_a_row_ + 1;
  skipped_in_a_row_ = train_io_.stats().skipped ? skipped_in_a_row_ + 1 : 0;
  if (finite && loss_scale.exhausted()) {
    return WithReason(
        absl::FailedPreconditionError(absl::StrCat(
            "the gradient was not finite in fp16 even at the smallest loss scale, ",
            loss_scale.state().scale,
            ", which is train.loss_scale.min; lower train.optimizer.lr, "
            "lengthen train.schedule.warmup_steps, lower train.loss_scale.min or use bf16")),
        v1::REASON_NON_FINITE_LOSS);
  }
  // A scale that still falls brings the gradient back, never the loss, which it does not touch.
  const bool falls = loss_scale.scales() && !loss_scale.fixed();
  if ((falls ? lost_in_a_row_ : skipped_in_a_row_) < kMaxSkippedSteps) return absl::OkStatus();
  return WithReason(absl::FailedPreconditionError(
                        absl::StrCat("the loss or its gradient was not finite for ",
                                     kMaxSkippedSteps, " steps in a row; ", WayOut(steps_done))),
                    v1::REASON_NON_FINITE_LOSS);
}

absl::Status Trainer::CheckEnd(int64_t steps_done, bool complete) {
  if (NeverFinite(steps_done)) {
    return WithReason(
        absl::FailedPreconditionError(absl::StrCat(
            "the loss was not finite in any of the ", steps_done,
            " steps, so nothing was learned and no checkpoint is written; look at model.init and "
            "the data, or lower train.optimizer.lr")),
        v1::REASON_NON_FINITE_LOSS);
  }
  const bool lost = lost_in_a_row_ > 0;
  const int64_t last = lost ? lost_in_a_row_ : skipped_in_a_row_;
  const bool most = 2 * last > steps_done;
  if (!complete || (!lost && !most)) return absl::OkStatus();
  const std::string text =
      absl::StrCat("the ", lost ? "loss" : "gradient", " was not finite in the last ", last, " of ",
                   steps_done, " steps, which were skipped; ", WayOut(steps_done));
  if (lost && most) {
    return WithReason(absl::FailedPreconditionError(text), v1::REASON_NON_FINITE_LOSS);
  }
  if (parts_.config->rank() == 0) parts_.reporter->Warn(text);
  return absl::OkStatus();
}

// Where so many steps in a row were not finite.
std::string Trainer::WayOut(int64_t steps_done) const {
  const LossScale& loss_scale = train_io_.loss_scale();
  const bool scales = loss_scale.scales();
  if (scales && lost_in_a_row_ == 0) {
    return loss_scale.fixed()
               ? "lower train.loss_scale.fixed, or set it to 0: it is found then"
               : absl::StrCat("the loss scale has fallen to ", loss_scale.state().scale,
                              " and falls on with more train.steps; or lower "
                              "train.loss_scale.initial");
  }
  constexpr char kSmaller[] = "lower train.optimizer.lr";
  constexpr char kLater[] = "lengthen train.schedule.warmup_steps";
  return absl::StrCat(NeverFinite(steps_done) ? "look at model.init and the data; or " : "",
                      kSmaller,
                      spec_.train().precision() == "fp32"
                          ? absl::StrCat(" or ", kLater)
                          : absl::StrCat(", ", kLater, " or use ", scales ? "bf16" : "fp32"));
}

absl::StatusOr<bool> Trainer::AgreeToStop() {
  if (parts_.checkpointer != nullptr) TakeCheckpoint(parts_.checkpointer->Poll());
  parts_.flight->Enter(FlightActivity::kAgreeing);
  ASSIGN_OR_RETURN(const Votes wishes,
                   parts_.agreement->Exchange(
                       {.stop = parts_.stop->load(), .failed = !checkpoint_status_.ok()}));
  parts_.flight->Enter(FlightActivity::kBetween);
  RETURN_IF_ERROR(checkpoint_status_);
  if (wishes.failed) {
    // All ranks write one checkpoint and come to one outcome; this one may not know it yet.
    TakeCheckpoint(AwaitCheckpoint());
    RETURN_IF_ERROR(checkpoint_status_);
    return WithReason(absl::AbortedError("another rank could not write its checkpoint"),
                      v1::REASON_CHECKPOINT_ERROR);
  }
  return wishes.stop;
}

absl::Status Trainer::Restore() {
  if (!parts_.vm->Has("restore")) return absl::OkStatus();
  NoIo nothing;
  return parts_.vm->Run("restore", &nothing);
}

absl::Status Trainer::Evaluate(int64_t steps_done) {
  evaluated_step_ = steps_done;
  // Of the size of a step's batch: the loss is of the same rows whatever the layout.
  const int64_t batches = spec_.train().eval_batches() * rules_.micro_batches();
  if (batches == 0 || !parts_.vm->Has("eval")) return absl::OkStatus();
  const int64_t start_ns = parts_.clock->MonotonicNanos();
  RETURN_IF_ERROR(Restore());
  eval_io_.Start();
  for (int64_t i = 0; i < batches; ++i) {
    eval_io_.Next();
    parts_.flight->Enter(FlightActivity::kEvaluating);
    RETURN_IF_ERROR(parts_.vm->Run("eval", &eval_io_));
  }
  v1::EvalEvent event;
  event.set_step(steps_done);
  event.set_loss(eval_io_.loss());
  event.set_tokens(eval_io_.tokens());
  event.set_seconds((parts_.clock->MonotonicNanos() - start_ns) * 1e-9);
  event.set_best(validation_.Add(steps_done, eval_io_.loss()));
  parts_.flight->Enter(FlightActivity::kBetween);
  parts_.reporter->Best(validation_.state().best_step, validation_.state().best_loss);
  parts_.reporter->Eval(event, TextOf(eval_io_.pairs()));
  return absl::OkStatus();
}

void Trainer::Report(int64_t steps_done, double seconds) {
  v1::StepEvent event;
  event.set_step(steps_done);
  event.set_loss(train_io_.stats().loss);
  event.set_grad_norm(train_io_.stats().grad_norm);
  event.set_skipped(train_io_.stats().skipped);
  event.set_step_seconds(seconds);
  event.set_tokens_per_second(static_cast<double>(step_tokens_) / seconds);
  event.set_learning_rate(train_io_.stats().learning_rate);
  event.set_loss_scale(train_io_.stats().loss_scale);
  event.set_skipped_steps(train_io_.loss_scale().state().skipped);
  event.set_tokens(tokens_);
  const bool log = steps_done == rules_.steps() ||
                   Due(std::max<int64_t>(spec_.train().log_every_steps(), 1), steps_done);
  UpdateMetrics(steps_done, seconds);
  parts_.reporter->Step(event, metrics_, log, TextOf(train_io_.stats().pairs));
}

double Trainer::UsefulFlops() const {
  const auto places = static_cast<double>(GlobalBatch(rules_) * length_);
  return sequences_.Of(length_).flops * (static_cast<double>(step_tokens_) / places);
}

void Trainer::UpdateMetrics(int64_t steps_done, double seconds) {
  // A graph leaves no slices: one slow step that did must not count again for each that did not.
  const SequenceTimes times =
      Scaled(Times(*parts_.vm->Find(sequences_.Of(length_).name)), parts_.vm->slices_scale());
  metrics_.set_collective_seconds(metrics_.collective_seconds() + times.collective);
  metrics_.set_collective_exposed_seconds(metrics_.collective_exposed_seconds() +
                                          times.collective_exposed);
  metrics_.set_compute_seconds(metrics_.compute_seconds() + times.compute);
  metrics_.set_offload_stall_seconds(metrics_.offload_stall_seconds() + times.offload_exposed);
  *metrics_.mutable_traffic() = TrafficLines(parts_.vm->traffic());
  if (const DynamicMemory* dynamic = parts_.vm->dynamic(); dynamic != nullptr)
    *metrics_.mutable_allocator() = dynamic->stats();
  if (parts_.driver_watch != nullptr) {
    const DriverUse use = parts_.driver_watch->latest();
    metrics_.set_driver_bytes(use.bytes);
    metrics_.set_driver_source(use.source);
    metrics_.set_energy_joules(parts_.driver_watch->EnergyJoules());
  }
  metrics_.set_step_seconds(seconds);
  metrics_.set_steps(steps_done);
  metrics_.set_tokens(tokens_);
  metrics_.set_loss(train_io_.stats().loss);
  metrics_.set_grad_norm(train_io_.stats().grad_norm);
  metrics_.set_loss_scale(train_io_.loss_scale().state().scale);
  metrics_.set_skipped_steps(train_io_.loss_scale().state().skipped);
  metrics_.set_flops_per_second(UsefulFlops() / seconds);
  metrics_.set_last_step_unix_ms(parts_.clock->UnixMillis());
}

void Trainer::TakeCheckpoint(std::optional<absl::StatusOr<WrittenCheckpoint>> result) {
  if (!result.has_value()) return;
  if (!result->ok()) {
    checkpoint_status_ = result->status();
    return;
  }
  const WrittenCheckpoint& written = **result;
  v1::CheckpointEvent event;
  event.set_step(written.info.step);
  event.set_path(written.info.path);
  event.set_bytes(written.info.bytes);
  event.set_seconds(written.seconds);
  event.set_stall_seconds(written.stall_seconds);
  parts_.reporter->Checkpoint(event);
  parts_.flight->Record(FlightEventKind::kCheckpoint, v1::TIER_UNSPECIFIED, written.info.bytes);
  if (parts_.config->rank() == 0) {  // one rank counts what all have written
    metrics_.set_checkpoint_bytes(metrics_.checkpoint_bytes() + written.info.bytes);
  }
  metrics_.set_checkpoint_stall_seconds(metrics_.checkpoint_stall_seconds() +
                                        written.stall_seconds);
}

std::optional<absl::StatusOr<WrittenCheckpoint>> Trainer::AwaitCheckpoint() {
  if (parts_.checkpointer == nullptr) return std::nullopt;
  parts_.flight->Enter(FlightActivity::kCheckpoint);
  auto result = parts_.checkpointer->Finish();
  parts_.flight->Enter(FlightActivity::kBetween);
  return result;
}

void Trainer::StartCheckpoint(int64_t steps_done) {
  if (parts_.checkpointer == nullptr || spec_.checkpoint().save() == "never") return;
  TakeCheckpoint(AwaitCheckpoint());
  if (!checkpoint_status_.ok() || checkpoint_started_step_ == steps_done) return;
  checkpoint_started_step_ = steps_done;
  parts_.checkpointer->Start(steps_done, tokens_,
                             {train_io_.loss_scale().state(), validation_.state()});
}

// No rank succeeds before the job's result is on disk.
absl::Status Trainer::WriteLastCheckpoint(int64_t steps_done) {
  StartCheckpoint(steps_done);
  TakeCheckpoint(AwaitCheckpoint());
  return AgreeToStop().status();
}

}  // namespace terrace
