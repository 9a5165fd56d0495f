// The life of a job as pure functions: what happened goes in, the next Job comes out, and what is
// to be done is read off it.
//
//   PENDING -> PLANNING -> QUEUED -> STARTING -> RUNNING -> SUCCEEDED | FAILED | CANCELLED
//                            ^                    |   ^
//                            +--- RECOVERING <----+   +- a rank or worker was lost: the whole gang
//                            restarts. A drained worker: it goes on elsewhere, and no restart is
//                            counted against it
//
// Any state that has not ended -> PAUSED, at once, or of a job that runs after a checkpoint. PAUSED
// -> QUEUED when it is resumed; without a plan -> PENDING, without the layout that it needs ->
// RECOVERING.
//
// RUNNING -> QUEUED after a checkpoint when it is requeued, preempted by a job of a higher
// priority, or may have more workers than it was planned for.
//
// A job that has had its devices for as long as its time limit allows stops after a checkpoint and
// is FAILED (TIME_LIMIT); time_limit.h counts.
//
// A job whose memory ran out outside its arenas waits in RECOVERING with an adjustment that has no
// layout yet, until a fallback (prepare/fallback.h) was found.
//
// Actions follow from the stored state and from what workers report, never from the moment of a
// transition: a coordinator that dies between writing and acting acts after its restart. No clock,
// no I/O. docs/jobs.md has the whole diagram. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "coordinator/life/drain_action.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/worker.pb.h"

namespace terrace {

// SUCCEEDED, FAILED or CANCELLED: nothing happens to it any more.
bool HasEnded(v1::JobState state);
// STARTING or RUNNING: its placement's devices are its own.
bool HoldsDevices(v1::JobState state);
// True when a rank that failed for this reason would fail for it again: wrong data, a full disk, a
// loss that is no number.
bool IsPermanent(v1::Reason reason);
// RECOVERING, and its layout ran out of memory: it goes on with a smaller one, or not at all.
bool NeedsSmallerLayout(const v1::Job& job);

// The number at the end of a job's id: "gpt2-books-17" -> 17.
int64_t NumberOf(std::string_view id);

// A job just accepted: PENDING.
v1::Job NewJob(std::string_view id, const v1::JobSpec& spec, int64_t unix_ms);

// What is known of one rank of a placement.
enum class Presence {
  kReported,  // its worker reports it: `report` is set
  kMissing,   // its worker reports, but not this rank
  kAway,      // its worker is silent, not yet given up
  kLost,      // its worker was given up
};
struct RankView {
  uint32_t rank = 0;
  std::string worker;
  Presence presence = Presence::kAway;
  v1::RankReport report;
  double silent_seconds = 0;  // since its worker was last heard
};

// What may happen to a job.
struct PlanningStarted {};
struct Planned {
  v1::Plan plan;
};
struct Refused {  // invalid, or nothing fits
  v1::Reason reason = v1::REASON_NONE;
  std::string message;
};
struct Adjusted {  // a smaller layout was found
  v1::Plan plan;
  std::string change;  // a sentence
};
struct MustWait {  // for devices, or for a worker that could hold it
  v1::Reason reason = v1::REASON_NONE;
  std::string message;
};
struct Placed {
  v1::Placement placement;
};
struct RanksObserved {
  std::vector<RankView> ranks;   // all of the placement
  int64_t starting_ms = 0;       // since they were placed, while they start
  bool tell = false;             // what the start waits for
  DrainAction leaving;           // when a worker of the placement is drained
  std::optional<v1::Hang> hang;  // the gang stands still (hang.h)
  bool restart_hanging = false;  // it has for as long as its spec lets it
};
struct Progressed {
  v1::Progress progress;
  // Of the steps since the last one that was told (spent_time.h).
  double repeated_share = 0;
  double evaluating_seconds = 0;
  double checkpoint_seconds = 0;
};
struct CancelAsked {
  bool force = false;
};
struct PauseAsked {
  bool force = false;  // also a job that runs, at once
};
struct ResumeAsked {};
struct RequeueAsked {
  bool force = false;  // also a job that runs, at once
};
struct Preempted {  // a job of a higher priority needs its devices
  std::string by;
};
struct GrowAsked {};           // workers are free for it, of those that it may have
struct RestoredFromBackup {    // the coordinator's state, which is older than what workers do now
  int64_t epochs_skipped = 0;  // that may have been used since
};
struct DependencyFailed {  // a job that it waits for has ended in another way than it needs
  std::string message;
};
using JobInput =
    std::variant<PlanningStarted, Planned, Refused, Adjusted, MustWait, Placed, RanksObserved,
                 Progressed, CancelAsked, PauseAsked, ResumeAsked, RequeueAsked, Preempted,
                 GrowAsked, RestoredFromBackup, DependencyFailed>;

struct Transition {
  v1::Job job;             // only when it has changed
  bool changed = false;    // false: it is as before
  std::string learned_on;  // the worker on which learned_external_bytes grew; empty: it did not
};

// FAILED_PRECONDITION when `input` cannot happen in the job's state; the message names both.
absl::StatusOr<Transition> Apply(const v1::Job& job, const JobInput& input, int64_t unix_ms);

// What a worker is to be told. All are idempotent, so they are repeated until the reports show
// their effect.
struct Action {
  enum class Kind { kStart, kGo, kStopWithCheckpoint };
  Kind kind = Kind::kStart;
  std::string worker;
  std::vector<uint32_t> ranks;  // of kStart; the others concern all of the job's ranks there
  bool operator==(const Action&) const = default;
};
// One action at most per worker, in order of rank. `leaving` as of RanksObserved.
std::vector<Action> ActionsFor(const v1::Job& job, absl::Span<const RankView> ranks,
                               const DrainAction& leaving = {});

// Until a worker reports the ranks that it was told to start.
inline constexpr int64_t kStartTakenUpMs = 60'000;

// True when a reported rank must be killed and forgotten: its job has ended, is unknown (null), or
// has moved on to another epoch.
bool IsStray(const v1::Job* job, const v1::RankReport& report);

}  // namespace terrace
