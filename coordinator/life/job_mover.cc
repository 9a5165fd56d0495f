// SPDX-License-Identifier: Apache-2.0
#include "coordinator/life/job_mover.h"

#include "base/utf8.h"
#include "coordinator/life/time_limit.h"

namespace terrace {

Transition Mover::To(v1::JobState state, v1::Reason reason, std::string text) {
  const bool is_same = job().state() == state && job().reason() == reason;
  if (is_same && job().message() == text) return Stay();  // thousands of jobs may wait
  std::string message = CleanText(text);                  // what a worker said may be any bytes
  if (is_same && job().message() == message) return Stay();
  v1::Job& next = Change();
  if (state == v1::RUNNING && next.started_unix_ms() == 0) next.set_started_unix_ms(unix_ms_);
  if (HasEnded(state)) next.set_finished_unix_ms(unix_ms_);
  if (!HoldsDevices(state)) next.set_held_before_seconds(HeldSeconds(next, unix_ms_));
  if (state != v1::RUNNING) {  // what was asked of its gang is done, or its gang is gone
    const bool grows = next.preempted_by() == next.id();  // and keeps its place in the queue
    if (next.resume_requested() && !HasEnded(state) && !grows) next.set_resumed_unix_ms(unix_ms_);
    next.clear_pause_requested();
    next.clear_resume_requested();
  }
  if (state != next.state()) next.set_paused_unix_ms(state == v1::PAUSED ? unix_ms_ : 0);
  if (!HoldsDevices(state)) {
    next.clear_hang();
    next.clear_slow_ranks();
  }
  next.set_state(state);
  next.set_reason(reason);
  next.set_message(std::move(message));
  return std::move(next_);
}

}  // namespace terrace
