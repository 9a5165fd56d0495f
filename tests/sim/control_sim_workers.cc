// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "tests/sim/control_sim.h"

// Workers and their streams, and how these fail.
namespace terrace {

void ControlSim::Turn(Link& link) {
  link.worker->Turn([this](const std::string& job) -> int64_t& { return checkpoints_[job]; },
                    clock_.UnixMillis());
  if (link.session != 0) link.up.push_back(link.worker->Heartbeat());
}

// The oldest message of each direction.
void ControlSim::Deliver(Link& link) {
  if (!link.late.empty()) {
    const auto [session, message] = link.late.front();
    link.late.pop_front();
    ++counts_.stale_messages;
    Deliver(link, session, message);
  }
  if (link.session == 0) return Connect(link);
  if (clock_.MonotonicNanos() < link.cut_until_ns) return;
  if (!link.down.empty()) {
    link.worker->Handle(link.down.front());
    link.down.pop_front();
  }
  if (!link.up.empty()) {
    const v1::WorkerMessage message = link.up.front();
    link.up.pop_front();
    Deliver(link, link.session, message);
  }
  reconciler_->Pass();
}

void ControlSim::Deliver(Link& link, uint64_t session, const v1::WorkerMessage& message) {
  const absl::Status status = reconciler_->WorkerSaid(link.worker->name(), session, message);
  if (status.ok()) {
    link.heard_ns = clock_.MonotonicNanos();
    link.reported.clear();
    for (const v1::RankReport& report : message.heartbeat().ranks())
      link.reported.emplace_back(report.job(), report.epoch());
  }
  if (session != link.session) {
    if (status.ok() && link.session != 0)
      Fail("what was said on a stream before the present one is taken");
    return;
  }
  if (!status.ok()) {
    Tell(absl::StrCat(link.worker->name(), " is refused: ", status.message()));
    Disconnect(link);
  }
}

void ControlSim::Disturb(Link& link) {
  const bool is_up = Chance(50);
  const bool is_lost = Chance(50);
  if (is_up ? link.up.empty() : link.down.empty()) return;
  Tell(absl::StrCat("a message ", is_up ? "of " : "to ", link.worker->name(),
                    is_lost ? " is lost" : " comes twice"));
  ++(is_lost ? counts_.lost_messages : counts_.doubled_messages);
  if (is_up && is_lost) link.up.pop_front();
  if (!is_up && is_lost) link.down.pop_front();
  if (is_lost) return;
  if (is_up) {
    const v1::WorkerMessage again = link.up.front();
    link.up.push_front(again);
  } else {
    const v1::CoordinatorMessage again = link.down.front();
    link.down.push_front(again);
  }
}

void ControlSim::HurtMachine(Link& link) {
  switch (Below(5)) {
    case 0:
      Tell(absl::StrCat(link.worker->name(), " begins anew"));
      link.worker->Reboot();
      return Disconnect(link);
    case 1:
      Tell(absl::StrCat("the stream of ", link.worker->name(), " breaks"));
      return Disconnect(link);
    case 2:
      return Drain(link.worker->name());
    default:
      Tell(absl::StrCat("a rank on ", link.worker->name(), " dies"));
      return link.worker->Kill(static_cast<size_t>(Below(3)));
  }
}

void ControlSim::Connect(Link& link) {
  if (clock_.MonotonicNanos() < link.cut_until_ns) return;
  link.session = ++last_session_;
  const absl::Status status = reconciler_->WorkerRegistered(link.worker->node(), link.session);
  if (!status.ok()) return Fail(absl::StrCat("a worker is refused: ", status.message()));
  link.heard_ns = clock_.MonotonicNanos();
  Tell(absl::StrCat(link.worker->name(), " registers"));
  link.up.push_back(link.worker->Heartbeat());
  reconciler_->Pass();
}

// The coordinator may learn of it now or never: a machine that has lost its power says nothing.
void ControlSim::Disconnect(Link& link) {
  if (link.session == 0) return;
  const uint64_t session = std::exchange(link.session, 0);
  for (v1::WorkerMessage& message : link.up) link.late.emplace_back(session, std::move(message));
  link.up.clear();
  if (Chance(50)) link.down.clear();
  if (reconciler_ == nullptr) {
    link.late.clear();  // they die with it
    link.down.clear();
  } else if (Chance(50)) {
    reconciler_->WorkerGone(link.worker->name(), session);
  }
}

}  // namespace terrace
