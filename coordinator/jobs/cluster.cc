// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/cluster.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/name.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "coordinator/hardware/gpu_profile.h"
#include "proto/clean_strings.h"

namespace terrace {
namespace {

constexpr int64_t kMemoryBytesMax = int64_t{1} << 50;
constexpr uint32_t kThreadsPerDeviceMax = 1 << 16;
constexpr size_t kTextBytesMax = 1024;             // of each text that a worker says of itself
constexpr size_t kNodeBytesMax = size_t{4} << 20;  // with its profile
constexpr size_t kJobIdBytesMax = 512;

// INVALID_ARGUMENT: `value` is not from `least` to `most`.
absl::Status CheckRange(std::string_view what, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the worker's ", Absl(what), ": got ", value,
                                                 ", must be from ", least, " to ", most));
}

absl::Status CheckNode(const v1::Node& node) {
  if (absl::Status status = CheckName("the worker's name", node.name()); !status.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(status.message(), "; start it with another --name"));
  }
  RETURN_IF_ERROR(CheckRange("devices", node.devices(), 1, kRanksPerNodeMax));
  RETURN_IF_ERROR(CheckRange("gpus", node.gpus(), 0, kRanksPerNodeMax));
  RETURN_IF_ERROR(
      CheckRange("threads per device", node.threads_per_device(), 0, kThreadsPerDeviceMax));
  RETURN_IF_ERROR(CheckRange("memory", node.memory_bytes(), 0, kMemoryBytesMax));
  RETURN_IF_ERROR(CheckRange("device memory", node.device_memory_bytes(), 0, kMemoryBytesMax));
  if (!node.device().empty() && node.device() != "cpu" && node.device() != "cuda") {
    return absl::InvalidArgumentError(absl::StrCat("the worker's device: got \"",
                                                   CleanLine(node.device(), kTextBytesMax),
                                                   "\", must be cpu or cuda"));
  }
  for (const std::string* text : {&node.address(), &node.instruction_set(), &node.metrics_address(),
                                  &node.version(), &node.device_name(), &node.data_address()}) {
    RETURN_IF_ERROR(CheckRange("bytes of a text", static_cast<int64_t>(text->size()), 0,
                               static_cast<int64_t>(kTextBytesMax)));
  }
  return CheckRange("bytes of its registration", static_cast<int64_t>(node.ByteSizeLong()), 0,
                    static_cast<int64_t>(kNodeBytesMax));
}

// Of what no worker says.
absl::Status CheckReport(std::string_view name, const v1::RankReport& report) {
  const bool valid = v1::RankState_IsValid(report.state()) &&
                     report.state() != v1::RANK_STATE_UNSPECIFIED && report.epoch() >= 0 &&
                     report.progress().step() >= 0 && report.job().size() <= kJobIdBytesMax;
  if (valid) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      Absl(name), " reports what cannot be of rank ", report.rank(), " of job ",
      CleanLine(report.job(), kJobIdBytesMax), ": state ", static_cast<int>(report.state()),
      ", epoch ", report.epoch(), ", step ", report.progress().step()));
}

bool IsAlive(const v1::RankReport& report) {
  return report.state() != v1::RANK_SUCCEEDED && report.state() != v1::RANK_FAILED;
}

// What a rank holds is not in every heartbeat.
void KeepMemory(const std::vector<v1::RankReport>& before, size_t index, v1::RankReport& report) {
  if (report.has_memory() || !IsAlive(report)) return;
  const auto same = [&report](const v1::RankReport& old) {
    return old.job() == report.job() && old.epoch() == report.epoch() &&
           old.rank() == report.rank();
  };
  // Workers report their ranks in one order: as a rule it stands where it stood.
  const auto found = index < before.size() && same(before[index])
                         ? before.begin() + static_cast<ptrdiff_t>(index)
                         : std::find_if(before.begin(), before.end(), same);
  if (found != before.end() && found->has_memory()) *report.mutable_memory() = found->memory();
}

// What a worker offers of a device may be a part of it; its profile knows the whole.
GpuKind GpuOf(const v1::Node& node) {
  const int64_t whole = node.profile().device_memory_bytes();
  return {.name = node.device_name(),
          .memory_bytes = whole > 0 ? whole : node.device_memory_bytes(),
          .per_node = node.devices()};
}

void AddCuda(const v1::Node& node, NodeView* view) {
  const GpuKind gpu = GpuOf(node);
  view->cuda = true;
  view->external_bytes = WhatIfOverheadBytes(gpu);
  view->profile = std::make_shared<v1::HardwareProfile>(RatesOf(gpu, node.profile()));
}

NodeView ViewOf(const v1::Node& node) {
  NodeView view = {.name = node.name(),
                   .devices = node.devices(),
                   .device_memory_bytes = node.device_memory_bytes(),
                   .threads_per_device = std::max<uint32_t>(1, node.threads_per_device()),
                   .profile = std::make_shared<v1::HardwareProfile>(node.profile()),
                   .used = {},
                   .problem = node.problem()};
  if (node.device() == "cuda") AddCuda(node, &view);
  return view;
}

}  // namespace

std::string GpuWarning(const v1::Node& node) {
  return node.device() == "cuda" ? WarningOf(GpuOf(node), node.profile()) : "";
}

std::string_view NodeStateName(NodeState state) {
  switch (state) {
    case NodeState::kReady:
      return "ready";
    case NodeState::kAway:
      return "away";
    case NodeState::kLost:
      return "lost";
  }
  return "lost";
}

absl::Status Cluster::Register(const v1::Node& node, uint64_t session, int64_t now_ns,
                               std::string_view instance) {
  RETURN_IF_ERROR(CheckNode(node));
  const auto former = nodes_.find(node.name());
  if (former != nodes_.end() && former->second.connected && !instance.empty() &&
      !former->second.instance.empty() && former->second.instance != instance &&
      StateOf(former->second, now_ns) != NodeState::kLost) {
    return absl::AlreadyExistsError(absl::StrCat(
        "a worker ", node.name(), " is connected, from ", former->second.node.address(),
        ": names must differ. If it is the former process of this one, this one is let in when "
        "that has ended or was silent for ",
        former->second.beat.lost_after_ns / 1'000'000'000, " s"));
  }
  if (nodes_.size() >= kNodesMax && !nodes_.contains(node.name())) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this coordinator has ", kNodesMax, " workers, the most it takes"));
  }
  // Thousands of workers take their time to come back: a job is not restarted because its workers
  // are among the last.
  if (former == nodes_.end() && IsYoung(now_ns)) {
    const int64_t until_ns =
        std::min(now_ns + timing_.grace_apart_ns, start_ns_ + timing_.grace_most_ns);
    young_until_ns_ = std::max(young_until_ns_, until_ns);
  }
  Entry& entry = nodes_[node.name()];
  entry.node = node;
  CleanStrings(&entry.node);
  entry.session = session;
  entry.instance = std::string(instance);
  entry.connected = true;
  entry.reported = false;
  entry.lost = false;
  entry.heard_ns = now_ns;
  entry.beat = nodes_.size() > timing_.many ? timing_.beat_of_many : timing_.beat;
  expiry_ns_ = std::min(expiry_ns_, now_ns + LostAfterNs(entry, now_ns));
  entry.node.clear_problem();
  entry.reached_by.clear();
  entry.to_check = !node.data_address().empty();
  if (entry.to_check) to_check_.insert(node.name());
  entry.view = ViewOf(entry.node);
  CountMembers();
  return absl::OkStatus();
}

std::vector<Cluster::PeerCheck> Cluster::PeerChecks(int64_t now_ns) {
  std::vector<PeerCheck> checks;
  const auto can = [&](const Entry& entry) {
    return StateOf(entry, now_ns) == NodeState::kReady && !entry.node.data_address().empty();
  };
  const auto add = [&checks](const Entry& from, const Entry& to) {
    PeerCheck& check = checks.emplace_back();
    check.from = from.node.name();
    check.check.set_worker(to.node.name());
    check.check.set_data_address(to.node.data_address());
  };
  for (auto next = to_check_.begin(); next != to_check_.end();) {
    const std::string& name = *next;
    const auto found = nodes_.find(name);
    const bool has_problem = found != nodes_.end() && !found->second.node.problem().empty();
    if (found == nodes_.end() || !(found->second.to_check || has_problem)) {
      next = to_check_.erase(next);
      continue;
    }
    ++next;
    Entry& entry = found->second;
    const bool again = has_problem && now_ns >= entry.check_again_ns;
    if (!can(entry) || !(entry.to_check || again)) continue;
    size_t asked = 0;
    for (const auto& [other, peer] : nodes_) {
      if (other == name || !can(peer)) continue;
      if (++asked > kPeersChecked) break;
      add(peer, entry);
      if (entry.to_check) add(entry, peer);
    }
    entry.to_check = false;
    entry.check_again_ns = now_ns + timing_.check_again_ns;
  }
  return checks;
}

void Cluster::PeerChecked(std::string_view from, const v1::PeerChecked& checked, int64_t now_ns) {
  const auto found = nodes_.find(checked.worker());
  if (found == nodes_.end()) return;
  Entry& entry = found->second;
  if (entry.node.data_address() != checked.data_address()) return;  // it has come again since
  entry.reached_by[std::string(from)] = checked.error().empty();
  // Workers that have gone reach nobody.
  std::erase_if(entry.reached_by, [this](const auto& one) {
    const auto by = nodes_.find(one.first);
    return by == nodes_.end() || !by->second.connected;
  });
  const bool reached = std::any_of(entry.reached_by.begin(), entry.reached_by.end(),
                                   [](const auto& one) { return one.second; });
  if (reached || checked.error().empty()) return SetProblem(entry, "");
  entry.check_again_ns = now_ns + timing_.check_again_ns;
  to_check_.insert(checked.worker());
  SetProblem(entry,
             absl::StrCat("worker ", Absl(from), " cannot reach it for ranks (", checked.error(),
                          "); start it with --data-address and an address or interface that "
                          "other workers reach"));
}

void Cluster::SetProblem(Entry& entry, std::string_view problem) {
  if (entry.node.problem() == problem) return;
  entry.node.set_problem(std::string(problem));
  entry.view.problem = std::string(problem);
  CountMembers();
}

absl::StatusOr<Cluster::Entry*> Cluster::FindSession(std::string_view name, uint64_t session) {
  auto found = nodes_.find(name);
  if (found != nodes_.end() && found->second.session == session) return &found->second;
  return absl::FailedPreconditionError(
      absl::StrCat("another worker has registered as ", Absl(name), " since: names must differ"));
}

absl::Status Cluster::SetProfile(std::string_view name, uint64_t session,
                                 const v1::HardwareProfile& profile) {
  ASSIGN_OR_RETURN(Entry* const entry, FindSession(name, session));
  *entry->node.mutable_profile() = profile;
  entry->view = ViewOf(entry->node);
  CountMembers();
  return absl::OkStatus();
}

absl::Status Cluster::Heartbeat(std::string_view name, uint64_t session,
                                const v1::Heartbeat& heartbeat, int64_t now_ns, int64_t unix_ms) {
  ASSIGN_OR_RETURN(Entry* const found, FindSession(name, session));
  if (heartbeat.ranks_size() > kRanksPerNodeMax) {
    return absl::ResourceExhaustedError(absl::StrCat(Absl(name), " reports ",
                                                     heartbeat.ranks_size(),
                                                     " ranks; the limit is ", kRanksPerNodeMax));
  }
  for (const v1::RankReport& report : heartbeat.ranks()) RETURN_IF_ERROR(CheckReport(name, report));
  Entry& entry = *found;
  if (!std::exchange(entry.reported, true)) ++places_version_;
  if (std::exchange(entry.lost, false)) {
    expiry_ns_ = std::min(expiry_ns_, now_ns + LostAfterNs(entry, now_ns));
    CountMembers();
  }
  entry.heard_ns = now_ns;
  entry.node.set_last_heartbeat_unix_ms(unix_ms);
  std::vector<v1::RankReport> ranks(heartbeat.ranks().begin(), heartbeat.ranks().end());
  for (size_t i = 0; i < ranks.size(); ++i) KeepMemory(entry.ranks, i, ranks[i]);
  SetRanks(entry, std::move(ranks));
  return absl::OkStatus();
}

void Cluster::SetRanks(Entry& entry, std::vector<v1::RankReport> ranks) {
  const auto same = [](const v1::RankReport& a, const v1::RankReport& b) {
    return a.job() == b.job() && a.epoch() == b.epoch() && a.rank() == b.rank() &&
           a.device() == b.device() && a.state() == b.state();
  };
  if (!std::equal(ranks.begin(), ranks.end(), entry.ranks.begin(), entry.ranks.end(), same)) {
    ++places_version_;
    for (const v1::RankReport& report : ranks) ++ranks_of_[report.job()];
    for (const v1::RankReport& report : entry.ranks) {
      const auto found = ranks_of_.find(report.job());
      if (--found->second == 0) ranks_of_.erase(found);
    }
  }
  entry.ranks = std::move(ranks);
}

void Cluster::Disconnect(std::string_view name, uint64_t session) {
  auto found = nodes_.find(name);
  if (found == nodes_.end() || found->second.session != session) return;
  found->second.connected = false;
  ++places_version_;
}

void Cluster::Excuse(int64_t ns, int64_t now_ns) {
  for (auto& [name, entry] : nodes_) {
    if (!entry.lost) entry.heard_ns = std::min(now_ns, entry.heard_ns + ns);
  }
}

std::vector<std::string> Cluster::Expire(int64_t now_ns) {
  std::vector<std::string> lost;
  if (now_ns <= expiry_ns_) return lost;  // heartbeats only put it off
  expiry_ns_ = INT64_MAX;
  for (auto& [name, entry] : nodes_) {
    if (!entry.lost && StateOf(entry, now_ns) == NodeState::kLost) {
      entry.lost = true;
      SetRanks(entry, {});
      CountMembers();
      lost.push_back(name);
    }
    const int64_t next = entry.lost ? timing_.forget_after_ns : LostAfterNs(entry, now_ns);
    expiry_ns_ = std::min(expiry_ns_, entry.heard_ns + next);
  }
  std::erase_if(nodes_, [&](const auto& node) {
    return node.second.lost && now_ns - node.second.heard_ns > timing_.forget_after_ns;
  });
  return lost;
}

int64_t Cluster::LostAfterNs(const Entry& entry, int64_t now_ns) const {
  const bool many_come = nodes_.size() > timing_.many && IsYoung(now_ns);
  return many_come ? std::max(entry.beat.lost_after_ns, timing_.grace_ns)
                   : entry.beat.lost_after_ns;
}

NodeState Cluster::StateOf(const Entry& entry, int64_t now_ns) const {
  if (now_ns - entry.heard_ns > LostAfterNs(entry, now_ns)) return NodeState::kLost;
  return entry.connected && entry.reported ? NodeState::kReady : NodeState::kAway;
}

NodeState Cluster::StateOf(std::string_view name, int64_t now_ns) const {
  auto found = nodes_.find(name);
  if (found != nodes_.end()) return StateOf(found->second, now_ns);
  return IsYoung(now_ns) ? NodeState::kAway : NodeState::kLost;
}

Cluster::Beat Cluster::BeatOf(std::string_view name) const {
  const auto found = nodes_.find(name);
  return found == nodes_.end() ? timing_.beat : found->second.beat;
}

std::string Cluster::InstanceOf(std::string_view name) const {
  const auto found = nodes_.find(name);
  return found == nodes_.end() ? "" : found->second.instance;
}

bool Cluster::MayCountOthers(std::string_view worker, std::string_view job) const {
  const auto found = nodes_.find(worker);
  if (found == nodes_.end() || found->second.node.device() != "cuda") return false;
  const v1::Node& node = found->second.node;
  std::set<uint32_t> own, others;  // GPUs
  for (const v1::RankReport& report : found->second.ranks) {
    const uint32_t gpu = node.gpus() > 0 ? report.device() % node.gpus() : 0;
    // The job's own rank may have failed since it said what it holds.
    if (report.job() == job) own.insert(gpu);
    if (report.job() != job && IsAlive(report)) others.insert(gpu);
  }
  if (own.empty() || node.gpus() == 0) return !others.empty();
  return std::any_of(own.begin(), own.end(), [&](uint32_t gpu) { return others.contains(gpu); });
}

RankView Cluster::View(const v1::Placement::Rank& placed, std::string_view job, int64_t epoch,
                       int64_t now_ns) const {
  RankView view{.rank = placed.rank(), .worker = placed.worker()};
  const NodeState state = StateOf(placed.worker(), now_ns);
  if (state != NodeState::kReady) {
    view.presence = state == NodeState::kLost ? Presence::kLost : Presence::kAway;
    const auto found = nodes_.find(placed.worker());
    const int64_t heard_ns = found == nodes_.end() ? start_ns_ : found->second.heard_ns;
    view.silent_seconds = static_cast<double>(now_ns - heard_ns) * 1e-9;
    return view;
  }
  view.presence = Presence::kMissing;
  for (const v1::RankReport& report : nodes_.find(placed.worker())->second.ranks) {
    if (report.job() != job || report.epoch() != epoch || report.rank() != placed.rank()) continue;
    view.presence = Presence::kReported;
    view.report = report;
  }
  return view;
}

std::vector<NodeView> Cluster::Known(int64_t now_ns) const {
  std::vector<NodeView> views;
  for (const auto& [name, entry] : nodes_) {
    const NodeState state = StateOf(entry, now_ns);
    if (state == NodeState::kLost) continue;
    NodeView& view = views.emplace_back(entry.view);
    view.ready = state == NodeState::kReady;
    for (const v1::RankReport& report : entry.ranks) {
      if (IsAlive(report)) view.used[report.device()] = kSoon;
    }
  }
  return views;
}

std::vector<v1::Node> Cluster::List(int64_t now_ns) const {
  std::vector<v1::Node> nodes;
  for (const auto& [name, entry] : nodes_) {
    v1::Node& node = nodes.emplace_back(entry.node);
    node.set_state(std::string(NodeStateName(StateOf(entry, now_ns))));
    node.set_devices_used(
        static_cast<uint32_t>(std::count_if(entry.ranks.begin(), entry.ranks.end(), &IsAlive)));
  }
  return nodes;
}

std::vector<Cluster::Report> Cluster::Reports() const {
  std::vector<Report> reports;
  for (const auto& [name, entry] : nodes_) {
    for (const v1::RankReport& report : entry.ranks) reports.push_back({name, &report});
  }
  return reports;
}

std::map<NodeState, int64_t> Cluster::Count(
    int64_t now_ns, absl::FunctionRef<bool(std::string_view)> except) const {
  std::map<NodeState, int64_t> count;
  for (const auto& [name, entry] : nodes_) {
    if (!except(name)) ++count[StateOf(entry, now_ns)];
  }
  return count;
}

absl::Span<const v1::RankReport> Cluster::RanksOn(std::string_view worker) const {
  const auto found = nodes_.find(worker);
  if (found == nodes_.end()) return {};
  return found->second.ranks;
}

bool Cluster::HasOthers(std::string_view worker, std::string_view job) const {
  const auto found = nodes_.find(worker);
  if (found == nodes_.end()) return false;
  return std::any_of(
      found->second.ranks.begin(), found->second.ranks.end(),
      [job](const v1::RankReport& report) { return report.job() != job && IsAlive(report); });
}

}  // namespace terrace
