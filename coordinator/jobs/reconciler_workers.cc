// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "coordinator/jobs/reconciler.h"

// What workers say.
namespace terrace {
namespace {

// Beyond these they are stored at once, before the pass ends.
constexpr size_t kEventsUnstoredMax = 1024;

}  // namespace

absl::Status Reconciler::WorkerRegistered(const v1::Node& node, uint64_t session,
                                          std::string_view instance) {
  RETURN_IF_ERROR(cluster_.Register(node, session, clock_.MonotonicNanos(), instance));
  log::Info("worker ", node.name(), " at ", node.address(), " registered ", node.devices(),
            " devices");
  if (const std::string warning = GpuWarning(node); !warning.empty())
    log::Warn("worker ", node.name(), ": ", warning);
  EndDrainOfFormer(node.name(), instance);
  // What was sent to its last connection may be lost.
  for (auto sent = sent_ns_.lower_bound({.worker = node.name(), .job = "", .epoch = 0, .kind = 0});
       sent != sent_ns_.end() && sent->first.worker == node.name();) {
    sent = sent_ns_.erase(sent);
  }
  TouchJobsOn(node.name());
  return absl::OkStatus();
}

absl::Status Reconciler::WorkerSaid(std::string_view worker, uint64_t session,
                                    const v1::WorkerMessage& message) {
  for (const v1::JobEvent& event : message.events()) {
    RETURN_IF_ERROR(CheckPlaced(worker, event.job(), event.epoch()));
    StoreEvent(event);
  }
  switch (message.message_case()) {
    case v1::WorkerMessage::kHeartbeat:
      return TakeHeartbeat(worker, session, message.heartbeat());
    case v1::WorkerMessage::kKvSet: {
      const Entry* entry = Find(message.kv_set().job());
      if (entry == nullptr || entry->job.epoch() != message.kv_set().epoch()) {
        return absl::OkStatus();  // fenced: of a gang that is no more
      }
      RETURN_IF_ERROR(CheckPlaced(worker, entry->job.id(), entry->job.epoch()));
      return rendezvous_.Set(message.kv_set(), entry->job.placement().ranks_size());
    }
    case v1::WorkerMessage::kKvWait: {
      const Entry* entry = Find(message.kv_wait().job());
      if (entry == nullptr || entry->job.epoch() != message.kv_wait().epoch()) {
        return absl::OkStatus();
      }
      RETURN_IF_ERROR(CheckPlaced(worker, entry->job.id(), entry->job.epoch()));
      return rendezvous_.Wait(worker, message.kv_wait(), entry->job.placement().ranks_size(),
                              clock_.MonotonicNanos());
    }
    case v1::WorkerMessage::kPeerChecked:
      if (!message.peer_checked().error().empty()) {
        log::Warn("worker ", Absl(worker), " cannot reach worker ", message.peer_checked().worker(),
                  ": ", message.peer_checked().error());
      }
      cluster_.PeerChecked(worker, message.peer_checked(), clock_.MonotonicNanos());
      return absl::OkStatus();
    case v1::WorkerMessage::kProfile: {
      v1::HardwareProfile profile = message.profile();
      profile.set_doubt(CleanLine(profile.doubt()));
      log::Info("worker ", Absl(worker), " has measured its profile anew",
                profile.doubt().empty() ? "" : ", and it is in doubt again: ", profile.doubt());
      return cluster_.SetProfile(worker, session, profile);
    }
    case v1::WorkerMessage::kNeedProgram:
      return SendProgram(worker, message.need_program().sha256());
    default:
      if (message.events_size() > 0) return absl::OkStatus();
      return absl::InvalidArgumentError("a worker message of an unknown kind");
  }
}

absl::Status Reconciler::TakeHeartbeat(std::string_view worker, uint64_t session,
                                       const v1::Heartbeat& heartbeat) {
  const uint64_t before = cluster_.places_version();
  RETURN_IF_ERROR(
      cluster_.Heartbeat(worker, session, heartbeat, clock_.MonotonicNanos(), clock_.UnixMillis()));
  TouchJobsOn(worker, /*is_urgent=*/cluster_.places_version() != before);
  if (heartbeat.ranks_size() > 0) strays_on_.emplace(worker);
  return absl::OkStatus();
}

void Reconciler::WorkerGone(std::string_view worker, uint64_t session) {
  cluster_.Disconnect(worker, session);
  TouchJobsOn(worker);
}

void Reconciler::StoodStill(int64_t ns) { cluster_.Excuse(ns, clock_.MonotonicNanos()); }

// Events of one batch of messages are stored together, at the start of the pass that follows it.
void Reconciler::StoreEvent(const v1::JobEvent& event) {
  Entry* entry = Find(event.job());
  if (entry == nullptr) return;  // ended meanwhile
  // A daemon that returns tells steps that the next gang, gone on from a checkpoint, tells again.
  if (event.epoch() != entry->job.epoch()) return;
  entry->evaluating_seconds += event.eval().seconds();
  entry->checkpoint_seconds += event.checkpoint().stall_seconds();
  unstored_events_.push_back(event);
  unstored_events_.back().set_sequence(++entry->last_sequence);
  entry->history.Add(unstored_events_.back());
  entry->history_unwritten = true;
  // A store that fails is not the worker's fault, and it has said so.
  if (unstored_events_.size() >= kEventsUnstoredMax) FlushEvents().IgnoreError();
}

bool Reconciler::IsPlacedOn(Entry& entry, std::string_view worker) {
  if (entry.placed_epoch != entry.job.epoch()) {
    entry.placed_epoch = entry.job.epoch();
    entry.placed_on.clear();
    for (const v1::Placement::Rank& rank : entry.job.placement().ranks())
      entry.placed_on.insert(rank.worker());
  }
  return entry.placed_on.contains(worker);
}

absl::Status Reconciler::CheckPlaced(std::string_view worker, std::string_view job, int64_t epoch) {
  Entry* entry = Find(job);
  if (entry == nullptr || entry->job.epoch() != epoch || IsPlacedOn(*entry, worker))
    return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("worker ", Absl(worker), " speaks of job ",
                                                  Absl(job), ", of which no rank runs there"));
}

bool Reconciler::MayHaveProgram(std::string_view worker, std::string_view sha256) {
  const std::set<std::string>& there = index_.On(worker);
  return std::any_of(there.begin(), there.end(), [&](const std::string& id) {
    const auto& programs = Find(id)->job.plan().program_sha256();
    return std::find(programs.begin(), programs.end(), sha256) != programs.end();
  });
}

absl::Status Reconciler::SendProgram(std::string_view worker, std::string_view sha256) {
  absl::StatusOr<std::string> bytes =
      MayHaveProgram(worker, sha256)
          ? store_.GetProgram(sha256)
          : absl::PermissionDeniedError("no job that runs on this worker has it");
  if (!bytes.ok()) {
    log::Warn("worker ", Absl(worker), " asks for program ", Absl(sha256), ": ",
              bytes.status().message());
    v1::CoordinatorMessage message;
    message.mutable_program()->set_sha256(std::string(sha256));
    message.mutable_program()->set_error(
        absl::StrCat("the coordinator cannot read it: ", bytes.status().message()));
    ports_.Send(worker, message);
    return absl::OkStatus();
  }
  const int64_t total = static_cast<int64_t>(bytes->size());
  for (int64_t offset = 0; offset < total; offset += kProgramChunkBytes) {
    v1::CoordinatorMessage message;
    v1::ProgramChunk* chunk = message.mutable_program();
    chunk->set_sha256(std::string(sha256));
    chunk->set_offset(offset);
    chunk->set_total_bytes(total);
    chunk->set_data(bytes->substr(static_cast<size_t>(offset), kProgramChunkBytes));
    ports_.Send(worker, message);
  }
  return absl::OkStatus();
}

}  // namespace terrace
