// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "worker/daemon/supervisor.h"
#include "worker/flight/flight_recorder.h"

// What ranks say, also after their death.
namespace terrace {

bool IsFinal(v1::RankState state) {
  return state == v1::RANK_SUCCEEDED || state == v1::RANK_FAILED;
}

void Supervisor::Received(const Key& key, const v1::LinkMessage& message) {
  auto found = ranks_.find(key);
  if (found == ranks_.end()) return;
  Rank& rank = found->second;
  rank.heard_ms = NowMs();
  if (message.has_metrics()) rank.metrics = message.metrics();
  if (message.events_size() > 0) PassOn(rank, message);
  v1::WorkerMessage out;
  switch (message.message_case()) {
    case v1::LinkMessage::kReport:
      return TakeReport(rank, message.report());
    case v1::LinkMessage::kKvSet:
      *out.mutable_kv_set() = message.kv_set();
      if (rank.keys.size() < kRendezvousKeysKept) rank.keys.push_back(message.kv_set());
      break;
    case v1::LinkMessage::kKvWait:
      *out.mutable_kv_wait() = message.kv_wait();
      out.mutable_kv_wait()->set_rank(key.rank);
      rank.waits[message.kv_wait().request()] = out.kv_wait();
      break;
    default:
      return;
  }
  ports_.to_coordinator(out);
}

// Its end is reported when the process has ended: events may still be on their way.
void Supervisor::TakeReport(Rank& rank, const v1::RankReport& report) {
  rank.claimed = report;
  const bool state_changed = !IsFinal(report.state()) && rank.report.state() != report.state();
  if (state_changed) rank.report.set_state(report.state());
  *rank.report.mutable_progress() = report.progress();
  if (state_changed) ports_.changed();
}

void Supervisor::PassOn(Rank& rank, const v1::LinkMessage& message) {
  v1::WorkerMessage out;
  *out.mutable_events() = message.events();
  for (v1::JobEvent& event : *out.mutable_events()) {
    event.set_job(rank.config.job());
    event.set_epoch(rank.config.epoch());
  }
  ports_.to_coordinator(out);
  rank.told_step = std::max(rank.told_step, LastStep(message));
}

void Supervisor::PassOnUntoldSteps(Rank& rank) {
  const std::string& folder = rank.config.run_directory();
  const absl::StatusOr<FlightReader> flight = FlightReader::Open(folder);
  if (!flight.ok()) {
    if (!absl::IsNotFound(flight.status())) log::Warn(flight.status().message());
    return;
  }
  const absl::StatusOr<std::vector<FlightStep>> steps = flight->UntoldSteps();
  if (!steps.ok()) log::Warn(steps.status().message());
  v1::LinkMessage message;
  for (const FlightStep& step : steps.value_or(std::vector<FlightStep>())) {
    v1::JobEvent event;
    if (step.step <= rank.told_step || !event.ParseFromString(step.message)) continue;
    *message.add_events() = std::move(event);
  }
  if (message.events_size() == 0) return;
  PassOn(rank, message);
  const v1::StepEvent& last = message.events().rbegin()->step();
  rank.report.mutable_progress()->set_step(last.step());
  rank.report.mutable_progress()->set_loss(last.loss());
  rank.report.mutable_progress()->set_tokens(last.tokens());
  // Or every daemon that finds the folder would tell them again.
  if (const absl::Status status = MarkStepsTold(folder, rank.told_step); !status.ok())
    log::Warn(status.message());
}

}  // namespace terrace
