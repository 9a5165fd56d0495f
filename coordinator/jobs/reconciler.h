// The control loop: reads what is (store, reports of the workers), decides with the pure job state
// machine and scheduler, writes the decision, and only then acts on it.
//
// Pass() does that and is idempotent; it runs after every change and a few times a second. It looks
// at jobs that something has happened to, and at each job that has a gang once a second or so: time
// is something that happens, too. Whatever a crash leaves undone, the next pass does: all state
// that matters is in the store or in the next heartbeat.
//
// What a queue costs does not grow with its length: why a job waits is stored when the reason
// changes, and all that is said about it, which changes with every job that ends, is kept here
// only.
//
// Jobs that have ended are in the store only.
//
// Its parts: reconciler.cc (clients, writing), reconciler_submit.cc, reconciler_pass.cc,
// reconciler_looks.cc, reconciler_placing.cc, reconciler_queue.cc, reconciler_planning.cc,
// reconciler_memory.cc, reconciler_stats.cc, reconciler_workers.cc, reconciler_history.cc,
// reconciler_drain.cc, reconciler_hang.cc, reconciler_list.cc, reconciler_elastic.cc. The outside
// comes in through ControlPorts. Used only on the control loop's thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "coordinator/hardware/budget.h"
#include "coordinator/history/history.h"
#include "coordinator/jobs/cluster.h"
#include "coordinator/jobs/control_stats.h"
#include "coordinator/jobs/directory_places.h"
#include "coordinator/jobs/job_index.h"
#include "coordinator/jobs/pace.h"
#include "coordinator/jobs/rendezvous.h"
#include "coordinator/life/dependencies.h"
#include "coordinator/life/job_state.h"
#include "coordinator/queue/fair_share.h"
#include "coordinator/queue/options.h"
#include "coordinator/queue/preempt.h"
#include "coordinator/store/store.h"
#include "proto/v1/drain.pb.h"
#include "proto/v1/list.pb.h"
#include "proto/v1/queue.pb.h"

namespace terrace {

inline constexpr size_t kActiveJobsMax = 20'000;
// Of one write.
inline constexpr size_t kSubmittedTogetherMax = 256;
inline constexpr int64_t kProgramChunkBytes = 1 << 20;
inline constexpr size_t kDrainsMax = kNodesMax;
inline constexpr size_t kDrainReasonBytesMax = 200;
// Planners that die over one job, in a row: then it is what kills them.
inline constexpr int kPlannersLostMax = 3;

// A plan and its programs as they are stored.
struct PlannedJob {
  v1::Plan plan;
  std::vector<StoredProgram> programs;
};
// The next layout of a job that ran out of memory (prepare/fallback.h).
struct DescendedJob {
  std::string rung;
  std::string change;
  PlannedJob planned;
};

// What decides how much a job's ranks hold outside their arenas, as far as that can be told before:
// jobs of one shape learn from each other.
std::string ShapeOf(const v1::JobSpec& spec);

// What the loop asks of the outside. All calls return at once.
class ControlPorts {
 public:
  using PlanDone = std::function<void(absl::StatusOr<PlannedJob>)>;
  using DescendDone = std::function<void(absl::StatusOr<DescendedJob>)>;

  virtual ~ControlPorts() = default;
  // To the worker's stream; dropped when it has none now.
  virtual void Send(std::string_view worker, const v1::CoordinatorMessage& message) = 0;
  // Prepare() somewhere else; `done` runs on the control loop's thread. UNAVAILABLE: not now.
  // ABORTED: whoever did it died. CANCELLED: `wanted` has expired, as it does with the job's end.
  virtual void Plan(const v1::JobSpec& spec, const Budget& budget, std::weak_ptr<void> wanted,
                    PlanDone done) = 0;
  // Descend() somewhere else, in the same way.
  virtual void Descend(const v1::JobSpec& spec, const Budget& budget, const v1::Plan& plan,
                       std::weak_ptr<void> wanted, DescendDone done) = 0;
  // New events of this job are in the store.
  virtual void EventsStored(std::string_view job) = 0;
};

// How a job is submitted.
struct Submitted {
  bool held = false;       // PAUSED from its beginning, until it is resumed
  std::string owner;       // who asks; empty: nobody knows
  Dependencies after;      // jobs that must have ended before it starts
  v1::ArrayMember member;  // without a size: it is of no array
  std::string place;       // of its checkpoint directory (planning/place.h); empty: not known
};
struct SubmittedJob {
  v1::JobSpec spec;
  absl::StatusOr<PlannedJob> planned;  // not OK: no worker could hold it, as the message says
  Submitted as;
};

// A part of a list of jobs, which begins with the newest ones.
struct PageOf {
  int64_t before = INT64_MAX;  // only jobs with smaller numbers
  int64_t skipped = 0;         // of the jobs that would be on it, the first ones
  int64_t limit = 100;         // > 0
  bool whole = false;          // jobs, not summaries; it ends where it has kPageBytesMax
};
inline constexpr size_t kPageBytesMax = 1 << 20;

class Reconciler {
 public:
  struct Timing {
    Cluster::Timing cluster;
    int64_t repeat_ns = 1'000'000'000;  // before a command is sent again
    // Between buffered writes of a job's progress; longer where there are many.
    int64_t progress_ns = 1'000'000'000;
    int64_t start_told_ns = 5'000'000'000;  // between two words on what a start waits for
    int64_t plan_again_ns = 2'000'000'000;  // before planning that could not begin is tried again
    int64_t memory_ns = 5'000'000'000;      // between two points of memory in a history
    int64_t history_ns = 30'000'000'000;    // between two writes of a job's history; as above
    // For the ranks of a job that ends because its gang broke, to say their last.
    int64_t last_words_ns = 2'000'000'000;
    int64_t slow_look_ns = 5'000'000'000;   // between two looks for slow ranks
    int64_t slow_told_ns = 30'000'000'000;  // that one must have been slow to be told
  };

  Reconciler(const Timing& timing, Store& store, const Clock& clock, ControlPorts& ports,
             const QueueOptions& queue = {});

  // Reads the jobs back. Call once, first.
  absl::Status Load();

  // ---- clients ----
  // Stores the job as QUEUED: with its programs when `planned`, else for want of a worker, with
  // that sentence.
  absl::StatusOr<v1::Job> Submit(const v1::JobSpec& spec, const absl::StatusOr<PlannedJob>& planned,
                                 const Submitted& as = {});
  // The same of several, of which one write stores as many as can be; no pass follows. Their ids,
  // in their order.
  std::vector<absl::StatusOr<std::string>> SubmitAll(absl::Span<const SubmittedJob> jobs);
  // As dependencies.h has it, of a job that would be submitted now.
  absl::Status CheckAfter(const Dependencies& dependencies) const;
  // INVALID_ARGUMENT: no array has such a job. NOT_FOUND: there is no such array.
  // PERMISSION_DENIED: it is another's.
  absl::Status CheckMember(const v1::ArrayMember& member, std::string_view owner) const;
  // Fills in what the spec leaves to this coordinator. INVALID_ARGUMENT: it asks for what this
  // coordinator does not allow.
  absl::Status Admit(v1::JobSpec* spec) const;
  // Into which jobs that have not ended write their checkpoints, and of which nobody knows, or not
  // for sure any more, where they lead. NotePlace() is to be called of each.
  std::vector<std::string> DirectoriesToPlace();
  // `place` is as of planning/place.h.
  void NotePlace(std::string_view directory, std::string_view place);
  // FAILED_PRECONDITION, with the other job, when one that has not ended writes there, maybe by
  // another name. An empty `place`: not known.
  absl::Status CheckDirectoryIsFree(const std::string& directory, std::string_view place) const;
  // Has whatever directory is known to be there looked at again. False: that is none, or it is of
  // that name, too.
  bool DoubtPlace(const std::string& directory, std::string_view place);
  absl::StatusOr<v1::Job> Cancel(std::string_view id, bool force);
  absl::StatusOr<v1::Job> Pause(std::string_view id, bool force);
  absl::StatusOr<v1::Job> Resume(std::string_view id);
  absl::StatusOr<v1::Job> Requeue(std::string_view id, bool force);
  absl::StatusOr<v1::Job> Get(std::string_view id) const;
  // Of a job that there is: SUCCEEDED, FAILED or CANCELLED.
  bool IsOver(std::string_view id) const { return !jobs_.contains(id); }
  absl::StatusOr<std::vector<v1::Job>> List(bool all) const;
  // The newest jobs of `filter` whose numbers are smaller than `before`, the newest first.
  // REQUIRES: limit > 0.
  absl::StatusOr<v1::ListPageResponse> ListPage(const JobFilter& filter, const PageOf& page) const;
  // How many jobs of each state there are, ended ones too.
  const std::map<v1::JobState, int64_t>& JobsOfStates() const { return stats_.jobs; }
  // Its whole life, thinned with age.
  absl::StatusOr<v1::JobHistory> HistoryOf(std::string_view id) const;
  // What its ranks last said that they hold, by rank. FAILED_PRECONDITION: it does not run.
  absl::StatusOr<v1::GetMemoryResponse> Memory(std::string_view id) const;
  // NOT_FOUND: no registered worker could hold it.
  absl::StatusOr<Budget> BudgetNow(const v1::JobSpec& spec) const;
  // A worker that is drained is "draining" while jobs are there, then "drained", and says so.
  std::vector<v1::Node> Nodes() const;
  ControlStats Stats() const;
  // NOT_FOUND: no worker of that name is known. INVALID_ARGUMENT: a deadline in the past, a reason
  // that is too long. `asked_by` is who asks, for people.
  absl::StatusOr<v1::DrainedNode> Drain(const v1::DrainRequest& request, std::string_view asked_by);
  // What is taken back. NOT_FOUND: it is not drained.
  absl::StatusOr<v1::Drain> Undrain(std::string_view node, std::string_view asked_by);
  std::vector<v1::DrainedNode> Drains() const;
  // What each user's jobs have had of the devices, and hold.
  v1::ListSharesResponse Shares() const;

  // ---- workers ----
  // `instance` tells one process of the worker from the next; empty: it does not say.
  absl::Status WorkerRegistered(const v1::Node& node, uint64_t session,
                                std::string_view instance = "");
  // How often a worker that has registered is to be heard.
  int64_t HeartbeatMs(std::string_view worker) const {
    return cluster_.BeatOf(worker).every_ns / 1'000'000;
  }
  // PERMISSION_DENIED: it speaks of a job that does not run there; what it says is ignored.
  // FAILED_PRECONDITION: another worker of that name has come. RESOURCE_EXHAUSTED: a limit.
  absl::Status WorkerSaid(std::string_view worker, uint64_t session,
                          const v1::WorkerMessage& message);
  void WorkerGone(std::string_view worker, uint64_t session);
  // This process stood still for that long until now, and did not listen.
  void StoodStill(int64_t ns);

  void Pass();

  // From now on nothing is decided: the process is about to end, and workers whose streams end with
  // it are not lost.
  void Close() { closed_ = true; }

 private:
  static constexpr int64_t kNeverNs = INT64_MAX;

  // What a job's gangs have done: the furthest step of all, and the epoch of the last one that
  // ended a step, whichever coordinator heard of it.
  struct GangSteps {
    int64_t furthest = 0;
    int64_t epoch = 0;
    int64_t newest = 0;  // of the present gang, where events tell; progress may be stored later
  };
  struct Entry {
    v1::Job job;
    int64_t last_sequence = 0;
    // Why it waits and when it may start, as of the last run through the queue; newer than what is
    // stored. Null: as stored. Shared with jobs that are told the same.
    std::shared_ptr<const WaitStory> waits;
    // When it was last looked at, and when it is to be again.
    int64_t looked_ns = 0;
    int64_t look_ns = kNeverNs;
    bool planning = false;
    int64_t plan_again_ns = 0;  // not before: what plans is short of something
    // Shared with nobody: its expiry, with this entry, ends a plan that nobody waits for any more.
    std::shared_ptr<void> wanted = std::make_shared<char>();
    int planners_lost = 0;  // in a row
    // Of a job with nodes MIN:MAX: what it stops for, when it may be planned for more again, and
    // since when it waits, in that epoch.
    std::optional<PlannedJob> larger;
    int64_t grow_again_ns = 0;
    int64_t waited_ns = 0;
    int64_t waited_epoch = -1;
    // Of the gang that starts: its epoch, and since when this coordinator knows of it.
    int64_t starting_epoch = 0;
    int64_t starting_ns = 0;
    int64_t start_told_ns = 0;
    bool progress_unwritten = false;
    int reports_off_plan = 0;  // one after the other, with new steps
    bool off_plan_told = false;
    int64_t progress_written_ns = 0;
    GangSteps done;
    // What evaluations and checkpoints took since progress was last counted.
    // The epoch of the gang that trains, and when this coordinator first heard of one of its steps.
    int64_t training_epoch = 0;
    int64_t training_since_unix_ms = 0;
    bool repeats = false;  // whether an earlier gang had done the newest step
    double evaluating_seconds = 0;
    double checkpoint_seconds = 0;
    std::string budget;  // the last one that was planned for: the same is not tried again
    // Of a gang that broke for good while some rank lived, as it was found then: the job ends when
    // all have ended, so that steps which they had not told come before its end.
    std::vector<RankView> broken;
    int64_t broken_ns = 0;
    History history;
    bool history_unwritten = false;
    int64_t history_written_ns = 0;
    int64_t memory_taken_ns = 0;
    bool fragmentation_told = false;
    double longest_step_seconds = 0;  // of the gang's last steps
    bool hang_dumped = false;         // its workers were asked to write down where its ranks stand
    int64_t slow_looked_ns = 0;
    // The workers of the placement in `placed_epoch`.
    int64_t placed_epoch = -1;
    std::set<std::string, std::less<>> placed_on;
    std::map<uint32_t, int64_t> slow_since_ns;  // by rank
  };
  struct Ended {
    JobStats stats;
    int64_t ended_ns = 0;
  };
  struct SentKey {
    std::string worker, job;
    int64_t epoch, kind;
    auto operator<=>(const SentKey&) const = default;
  };

  // Takes those that have ended out of the jobs that were read back.
  absl::Status PutAside(std::vector<v1::Job>* jobs);
  Entry* Find(std::string_view id);
  // As clients see it.
  v1::Job Shown(const Entry& entry) const;
  v1::JobSummary ShownInShort(const Entry& entry) const;
  // One of them is set.
  struct PageRow {
    int64_t number = 0;
    const Entry* active = nullptr;
    const v1::JobSummary* ended = nullptr;
  };
  bool IsTaken(const JobFilter& filter, const Entry& entry) const;
  absl::StatusOr<std::map<v1::JobState, int64_t>> CountJobs(const JobFilter& filter) const;
  absl::StatusOr<v1::ListPageResponse> PageWith(const std::vector<PageRow>& rows,
                                                const JobFilter& filter, const PageOf& page) const;
  // Of a job that is not stored yet; `before` others come before it in the same write.
  absl::StatusOr<v1::Job> MakeJob(const SubmittedJob& submitted, size_t before) const;
  // The first ones of `jobs`, in one write.
  void SubmitTogether(absl::Span<const SubmittedJob> jobs,
                      std::vector<absl::StatusOr<std::string>>* results);
  void Accept(v1::Job stored, const Submitted& as);
  // A job that was not in jobs_.
  void NoteNew(Entry& entry);
  // What follows for indexes and looks from a job that has changed, `before` as it was.
  void NoteChange(const v1::Job& before, Entry& entry);
  // The job is looked at by the next pass. One with many ranks that has only said how it goes on
  // need not be each time that one of them says so.
  void Touch(std::string_view id, bool is_urgent = true);
  void TouchJobsOn(std::string_view worker, bool is_urgent = true);
  void LookAt(Entry& entry, int64_t when_ns);
  void LookSoon(Entry& entry);
  // Until a job that was just looked at is looked at again if nothing happens.
  int64_t NextLookNs(const Entry& entry, const std::vector<RankView>& ranks) const;
  void NoteUnwritten(Entry& entry);
  // Of a client, who is answered with the job as it is then. NOT_FOUND: there is none.
  absl::StatusOr<v1::Job> Ask(std::string_view id, const JobInput& input);
  // Applies one input; writes the job, and its state event, when it changed. The entry may be gone
  // afterwards (ended).
  absl::Status Update(const std::string& id, const JobInput& input);
  absl::Status Write(Entry& entry, v1::Job next, std::vector<StoredProgram> programs,
                     std::vector<LearnedMemory> learned = {},
                     Durability durability = Durability::kSynced);
  v1::JobEvent StateEventOf(const v1::Job& job, int64_t sequence) const;
  // With what is counted of the steps that it tells of.
  static Progressed Told(const v1::Progress& progress, Entry* entry);
  void TakeProgress(Entry& entry, const std::vector<RankView>& ranks);
  // Says once when steps take another time than planned.
  void CompareWithPlan(Entry& entry, int64_t step_before);
  // Tells the worker whose profile did not predict the steps of a job that has it for itself. Its
  // name; empty: other things than a profile may be the cause.
  std::string DoubtProfile(const v1::Job& job, double ratio);
  absl::Status Commit(const Transaction& transaction);  // to the store, and counts its time
  void CountTransition(const v1::Job& before, const v1::Job& after);
  void CountFirstSteps(const v1::Job& before, const v1::Job& after);
  absl::StatusOr<GangSteps> GangStepsOf(const v1::Job& job, int64_t last_sequence) const;

  std::vector<RankView> Views(const v1::Job& job) const;
  void ObserveJobs();
  void ObserveJob(const std::string& id, Entry& entry);
  RanksObserved Observed(Entry& entry, const std::vector<RankView>& ranks) const;
  // Whether the job's end waits for what its ranks may still say.
  bool HearsLastWords(Entry& entry, const std::vector<RankView>& ranks);
  void Act(const v1::Job& job, const std::vector<RankView>& ranks, const DrainAction& leaving);
  // The gang stands still, and in `restart` whether for as long as its spec lets it.
  std::optional<v1::Hang> HangNow(const Entry& entry, const std::vector<RankView>& ranks,
                                  bool* restart) const;
  // Of a job that has just been found to hang: counts it, and has its workers write down where.
  void NoteHang(Entry& entry);
  void TellSlowRanks(Entry& entry, const std::vector<RankView>& ranks);
  // How the job leaves the drained workers that it is on.
  DrainAction DrainActionNow(const v1::Job& job) const;
  // Of each drained worker, the jobs that hold devices there.
  std::map<std::string, std::set<std::string>, std::less<>> JobsOnDrained() const;
  // A drain until the worker's restart ends when another process of it has come.
  void EndDrainOfFormer(const std::string& worker, std::string_view instance);
  // As cluster_ has them, and whether they are drained.
  std::vector<NodeView> KnownNodes() const;
  void CountNodes(ControlStats* stats) const;
  // Of the workers on which something has changed. Also how a worker learns that it may forget
  // ranks that have ended.
  void StopStrays();
  // Nothing where there never was such a job. UNSPECIFIED: the store cannot be read now.
  std::optional<v1::JobState> StateOf(std::string_view id) const;
  // Users with jobs that wait or hold devices, or that had devices lately: what they hold, and what
  // they have had.
  struct OwnerNow {
    uint32_t devices = 0;
    TierBytes bytes = {};
    double device_seconds = 0;
  };
  std::map<std::string, OwnerNow, std::less<>> OwnersNow(int64_t unix_ms) const;
  // What the job's owner has had once `after` has given up the devices of `before`; nothing: it has
  // not given up any.
  std::optional<OwnerUsage> Released(const v1::Job& before, const v1::Job& after) const;
  // By which the queue is ordered, as of the last run through it.
  double PriorityOf(const v1::Job& job, int64_t unix_ms) const;
  // The jobs that wait as the queue takes them, their owners and their arrays.
  struct QueueView {
    std::vector<QueuedJob> jobs;
    std::vector<QueueOwner> owners;
    std::vector<QueueArray> arrays;
  };
  QueueView QueueNow(const std::vector<const v1::Job*>& waiting, int64_t unix_ms);
  void AddArrays(const std::vector<const v1::Job*>& waiting, QueueView* view) const;
  // Jobs that give their devices back for one of a higher priority, which waits as `story` says;
  // reconciler_preempt.cc.
  void PreemptFor(const v1::Job& job, const Need& need, const WaitStory& story,
                  const std::vector<QueueNode>& nodes, int64_t unix_ms);
  // By job: a sentence about those that stop for it.
  std::map<std::string, std::string, std::less<>> StoppingFor() const;
  std::vector<HeldGang> GangsUnder(int32_t priority, const std::vector<QueueNode>& nodes,
                                   int64_t unix_ms, std::vector<std::string>* ids) const;
  // What must happen before it may take devices; empty: nothing.
  std::string WaitsFirst(const v1::Job& job) const;
  // Jobs whose dependencies can never be met any more end.
  void EndUnmet();
  // Planned jobs that wait, when anything has changed that may be about them.
  void PlaceJobs();
  // The job waits. Stored when that, or the first reason, is new.
  void Wait(Entry& entry, std::shared_ptr<const WaitStory> story);
  std::vector<const v1::Job*> WaitingJobs() const;
  // With the devices of reported ranks and of placements whose ranks are not reported yet, and when
  // they are planned to be free.
  std::vector<QueueNode> FreeNodes(int64_t unix_ms) const;
  void PlanJobs();
  // Of jobs that wait for a plan and are planned now, or told that nobody could hold them.
  void PlanOrWait(const std::string& id, Entry& entry);
  void StartPlanning(const std::string& id, Entry& entry, const Budget& budget);
  void FinishPlanning(const std::string& id, absl::StatusOr<PlannedJob> planned);
  // Jobs whose layout ran out of memory get the next fallback.
  void FindSmallerLayouts();
  void FinishDescent(const std::string& id, absl::StatusOr<DescendedJob> descended);
  // Also with what the job's ranks were seen to need.
  absl::StatusOr<Budget> BudgetOf(const v1::Job& job) const;
  // With these workers alone; `shape` as of ShapeOf, "" where nothing is learned.
  absl::StatusOr<Budget> BudgetAmong(const v1::JobSpec& spec, const std::string& shape,
                                     std::vector<NodeView> nodes) const;
  // With the workers that have room for the job now, its own devices counted as free;
  // reconciler_elastic.cc, as what follows.
  absl::StatusOr<Budget> BudgetNowFree(const v1::Job& job,
                                       const std::vector<QueueNode>& nodes) const;
  // Plans a job for another number of workers, without a change of its state.
  void PlanAside(const std::string& id, Entry& entry, const Budget& budget);
  void FinishAside(const std::string& id, absl::StatusOr<PlannedJob> planned);
  void TakePlan(const std::string& id, PlannedJob planned);
  // A job that may have fewer workers is planned for those that are free, unless it starts soon
  // anyway. False: it goes on waiting as it is.
  bool PlanForFewer(const v1::Job& job, const WaitStory& story, const std::vector<QueueNode>& nodes,
                    int64_t unix_ms);
  std::optional<Budget> MayGrowTo(const Entry& entry, const std::vector<QueueNode>& nodes,
                                  int64_t unix_ms) const;
  void StopToGrow(const std::string& id, Entry& entry, PlannedJob larger);
  // What it stopped for, when it has.
  void TakeLarger(const std::string& id, Entry& entry);
  // One of the jobs that may have more workers is planned for them.
  void GrowJobs();
  // The drains, or what was learned of memory, have changed.
  void ForgetBudgets();
  void AnswerWaits();
  void FlushProgress();

  void LoadHistory(Entry& entry) const;
  v1::GetMemoryResponse MemoryOf(const v1::Job& job) const;
  // A point of memory in its history, from time to time.
  void TakeMemory(Entry& entry);
  // Says once that an allocator's free memory lies in pieces that are too small.
  void TellFragmentation(Entry& entry, const v1::GetMemoryResponse& memory);
  void FlushHistories();

  v1::CoordinatorMessage StartMessage(const v1::Job& job, const Action& action) const;
  void SendOnce(const SentKey& key, const v1::CoordinatorMessage& message);
  // Whether a rank of the job's present gang is placed there.
  static bool IsPlacedOn(Entry& entry, std::string_view worker);
  // Of what a worker says of a job; PERMISSION_DENIED unless it is placed there. OK too where that
  // is fenced: of a job that has ended, or of another epoch.
  absl::Status CheckPlaced(std::string_view worker, std::string_view job, int64_t epoch);
  absl::Status TakeHeartbeat(std::string_view worker, uint64_t session,
                             const v1::Heartbeat& heartbeat);
  // Whether a job that is placed there has it.
  bool MayHaveProgram(std::string_view worker, std::string_view sha256);
  void StoreEvent(const v1::JobEvent& event);
  absl::Status FlushEvents();
  absl::Status SendProgram(std::string_view worker, std::string_view sha256);

  const Timing timing_;
  Store& store_;
  const Clock& clock_;
  ControlPorts& ports_;
  const QueueOptions queue_;
  Cluster cluster_;
  Rendezvous rendezvous_;
  std::map<std::string, Entry, std::less<>> jobs_;    // that have not ended
  JobIndex index_;                                    // of jobs_
  DirectoryPlaces places_;                            // of jobs_
  std::set<std::pair<int64_t, std::string>> looks_;   // when which job is to be looked at
  std::set<std::string> strays_on_;                   // workers to be looked at for strays
  std::map<std::string, Usage, std::less<>> usages_;  // by owner, of gangs that have ended
  // Of the last run through the queue, by owner: what fair share adds to a job's priority.
  std::map<std::string, double, std::less<>> fair_shares_;
  std::map<std::string, OwnerNow, std::less<>> owners_;
  std::set<std::string> dependents_due_;  // jobs that are to be looked at by EndUnmet
  std::set<std::string> unwritten_;       // jobs whose progress is not stored
  int64_t progress_look_ns_ = INT64_MIN;  // when unwritten_ is looked at next
  int64_t history_look_ns_ = INT64_MIN;
  int64_t sent_look_ns_ = INT64_MIN;
  int64_t grow_look_ns_ = INT64_MIN;
  // Whether something has changed that jobs may be placed or planned for, beside the cluster.
  bool place_due_ = true, plan_due_ = true;
  uint64_t placed_version_ = 0, planned_version_ = 0;  // of the cluster, at the last run
  int64_t placed_ns_ = 0;                              // the last run began
  int64_t plan_wake_ns_ = kNeverNs;                    // some planning is to be tried again
  Pace place_pace_, plan_pace_;
  // BudgetNow() by what it depends on of a spec, while members and learned memory stay the same.
  mutable std::map<std::string, absl::StatusOr<Budget>> budgets_;
  mutable uint64_t budgets_version_ = 0;
  // A cache of the states of ended jobs that others wait for, of those asked for lately.
  mutable std::map<std::string, v1::JobState, std::less<>> ended_states_;
  int64_t last_number_ = 0;  // of a job id
  std::map<SentKey, int64_t> sent_ns_;
  std::map<std::pair<std::string, std::string>, int64_t> learned_;  // by worker and shape
  std::map<std::string, v1::Drain, std::less<>> drains_;            // by worker
  std::vector<v1::JobEvent> unstored_events_;                       // numbered already
  ControlStats stats_;             // what is counted since the start
  std::deque<Ended> ended_shown_;  // for scrapes that are yet to come
  bool closed_ = false;
};

}  // namespace terrace
