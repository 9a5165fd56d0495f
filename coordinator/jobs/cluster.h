// The workers as the coordinator knows them: who is registered, when each was last heard, and which
// ranks it reports.
//
// Reports are level-triggered: each heartbeat replaces everything known of its node, but for what
// its ranks hold, which it need not repeat. A worker that is silent for longer than its Beat allows
// is lost; one that a placement names but that has not come back since the coordinator's start is
// given `grace_ns`, and more while others are coming back. Time is an argument. Used only on the
// control loop's thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "coordinator/jobs/scheduler.h"
#include "coordinator/life/job_state.h"
#include "proto/v1/worker.pb.h"

namespace terrace {

inline constexpr size_t kNodesMax = 16384;
inline constexpr int kRanksPerNodeMax = 1024;  // in one heartbeat
// That dial a node which has come, and that it dials.
inline constexpr size_t kPeersChecked = 8;

enum class NodeState { kReady, kAway, kLost };
std::string_view NodeStateName(NodeState state);

// What plans take from elsewhere than from a worker's GPUs, and why; empty where nothing needs
// saying.
std::string GpuWarning(const v1::Node& node);

class Cluster {
 public:
  // How often a worker is to be heard, which wakes both sides, also while steps are computed there,
  // and after what silence it is lost.
  struct Beat {
    int64_t every_ns = 1'000'000'000;
    int64_t lost_after_ns = 3'000'000'000;
  };
  struct Timing {
    Beat beat;
    // Of those that come when there are `many` already: heartbeats would take most of a core.
    size_t many = 2000;
    Beat beat_of_many = {.every_ns = 2'000'000'000, .lost_after_ns = 4'500'000'000};
    int64_t grace_ns = 10'000'000'000;
    int64_t grace_apart_ns = 5'000'000'000;     // after each one that comes back in that time
    int64_t grace_most_ns = 120'000'000'000;    // in all
    int64_t forget_after_ns = 600'000'000'000;  // lost nodes leave the list
    int64_t check_again_ns = 10'000'000'000;    // of nodes that others cannot reach
  };
  Cluster(const Timing& timing, int64_t start_ns)
      : timing_(timing), start_ns_(start_ns), young_until_ns_(start_ns + timing.grace_ns) {}

  // `session` names the connection; the newest of a name is the valid one. INVALID_ARGUMENT: a name
  // or number that no worker has. RESOURCE_EXHAUSTED: kNodesMax. ALREADY_EXISTS: another process
  // has that name, and is heard.
  // `instance` tells one process of the worker from the next; empty: it does not say.
  absl::Status Register(const v1::Node& node, uint64_t session, int64_t now_ns,
                        std::string_view instance = "");
  // FAILED_PRECONDITION when the session is not the valid one of that name. INVALID_ARGUMENT: it
  // reports what cannot be; nothing of it counts.
  absl::Status Heartbeat(std::string_view name, uint64_t session, const v1::Heartbeat& heartbeat,
                         int64_t now_ns, int64_t unix_ms);
  void Disconnect(std::string_view name, uint64_t session);
  // Later plans are for it. FAILED_PRECONDITION as above.
  absl::Status SetProfile(std::string_view name, uint64_t session,
                          const v1::HardwareProfile& profile);
  // Who is to dial whom now: a node that has just come and some others each way, and those that
  // could not be reached again from time to time.
  struct PeerCheck {
    std::string from;
    v1::CheckPeer check;
  };
  std::vector<PeerCheck> PeerChecks(int64_t now_ns);
  // A node that some cannot reach, and nobody can, has a problem; it is told in List() and Known().
  void PeerChecked(std::string_view from, const v1::PeerChecked& checked, int64_t now_ns);
  // For the last `ns` nobody here listened: they do not count as silence of a node.
  void Excuse(int64_t ns, int64_t now_ns);
  // Forgets what nodes lost now had reported, and nodes lost long ago. Returns the names of those
  // that were lost just now.
  std::vector<std::string> Expire(int64_t now_ns);

  RankView View(const v1::Placement::Rank& placed, std::string_view job, int64_t epoch,
                int64_t now_ns) const;
  // The nodes that are not lost, with the devices that reported ranks hold.
  std::vector<NodeView> Known(int64_t now_ns) const;
  std::vector<v1::Node> List(int64_t now_ns) const;
  // How many there are of each state, without those of `except`.
  std::map<NodeState, int64_t> Count(int64_t now_ns,
                                     absl::FunctionRef<bool(std::string_view)> except) const;
  // Grows whenever Known() may tell of other nodes than before, or of another profile or problem.
  uint64_t members_version() const { return members_version_; }
  // Grows also when a node becomes ready or falls silent, and when another rank is reported, or one
  // in another state.
  uint64_t places_version() const { return places_version_; }
  NodeState StateOf(std::string_view name, int64_t now_ns) const;
  // So soon after the coordinator's start that workers may yet have to come back.
  bool IsYoung(int64_t now_ns) const { return now_ns <= young_until_ns_; }
  bool Has(std::string_view name) const { return nodes_.contains(name); }
  // As the worker was told; of one that is not known, as the first ones are.
  Beat BeatOf(std::string_view name) const;
  // Of its newest registration; empty: unknown.
  std::string InstanceOf(std::string_view name) const;
  // Whether what a rank of the job there says that it holds of a GPU outside its arena may be other
  // jobs': the driver tells only what all of them hold. So it is where ranks of both are on one
  // GPU, and, of a worker that does not say how many it has, where another job's ranks are there.
  bool MayCountOthers(std::string_view worker, std::string_view job) const;

  struct Report {
    std::string worker;
    const v1::RankReport* report;  // valid until the next change of the cluster
  };
  std::vector<Report> Reports() const;
  // Returns what that worker reports; valid until the next change of the cluster.
  absl::Span<const v1::RankReport> RanksOn(std::string_view worker) const;
  // Says whether any worker reports a rank of the job.
  bool HasRanksOf(std::string_view job) const { return ranks_of_.contains(job); }
  // True when ranks of other jobs live on that worker.
  bool HasOthers(std::string_view worker, std::string_view job) const;

 private:
  struct Entry {
    v1::Node node;
    NodeView view;  // of `node`, as nobody uses it
    Beat beat;
    uint64_t session = 0;
    std::string instance;
    bool connected = false;
    bool reported = false;  // a heartbeat came since it registered
    bool lost = false;      // Expire has seen it
    int64_t heard_ns = 0;
    std::vector<v1::RankReport> ranks;
    bool to_check = true;                    // it has come
    std::map<std::string, bool> reached_by;  // by whom it was dialled, and whether it answered
    int64_t check_again_ns = 0;              // of one with a problem
  };

  absl::StatusOr<Entry*> FindSession(std::string_view name, uint64_t session);
  NodeState StateOf(const Entry& entry, int64_t now_ns) const;
  // Without a word. While many come back at once, what they say waits to be read.
  int64_t LostAfterNs(const Entry& entry, int64_t now_ns) const;
  // In place of what it reported.
  void SetRanks(Entry& entry, std::vector<v1::RankReport> ranks);
  void SetProblem(Entry& entry, std::string_view problem);
  void CountMembers() { ++members_version_, ++places_version_; }

  const Timing timing_;
  const int64_t start_ns_;
  int64_t young_until_ns_;
  std::map<std::string, Entry, std::less<>> nodes_;
  std::map<std::string, int64_t, std::less<>> ranks_of_;  // reported, by job
  std::set<std::string, std::less<>> to_check_;           // that have come, or have a problem
  uint64_t members_version_ = 1;
  uint64_t places_version_ = 1;
  int64_t expiry_ns_ = INT64_MAX;  // no node is lost before
};

}  // namespace terrace
