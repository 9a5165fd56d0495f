// A worker of the simulation: the rules of worker/daemon/supervisor.h on a table of ranks. A rank
// prepares itself, waits for its gang, does steps and ends, one turn at a time.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "absl/functional/function_ref.h"
#include "proto/v1/worker.pb.h"

namespace terrace {

class SimWorker {
 public:
  using Key = std::tuple<std::string, int64_t, uint32_t>;  // job, epoch, rank
  // As planned and as told, so that the end of a job is not near, though a turn takes no time.
  static constexpr double kStepSeconds = 40;
  struct Rank {
    v1::RankReport report;
    int64_t steps = 0;  // that its job has
    bool stops = false;
  };

  SimWorker(std::string name, uint32_t devices) {
    node_.set_name(std::move(name));
    node_.set_devices(devices);
    node_.set_threads_per_device(1);
  }

  const v1::Node& node() const { return node_; }
  const std::string& name() const { return node_.name(); }
  const std::map<Key, Rank>& ranks() const { return ranks_; }
  static bool IsAlive(const Rank& rank) {
    return rank.report.state() != v1::RANK_SUCCEEDED && rank.report.state() != v1::RANK_FAILED;
  }

  void Handle(const v1::CoordinatorMessage& message) {
    if (message.has_start()) {
      for (const v1::RankConfig& config : message.start().ranks()) Start(config);
    } else if (message.has_go()) {
      for (auto& [key, rank] : ranks_) {
        const bool waits = rank.report.state() == v1::RANK_READY;
        if (waits && IsOf(key, message.go().job(), message.go().epoch()))
          rank.report.set_state(v1::RANK_RUNNING);
      }
    } else if (message.has_stop()) {
      Stop(message.stop());
    }
  }

  // A turn of each rank. `checkpoint` is the step of the newest checkpoint of a job, from which a
  // rank that begins goes on and which one that stops writes.
  void Turn(absl::FunctionRef<int64_t&(const std::string& job)> checkpoint, int64_t unix_ms) {
    for (auto& [key, rank] : ranks_) {
      v1::Progress& progress = *rank.report.mutable_progress();
      switch (rank.report.state()) {
        case v1::RANK_PREPARING:
          progress.set_step(checkpoint(std::get<0>(key)));
          rank.report.set_state(v1::RANK_READY);
          break;
        case v1::RANK_RUNNING: {
          progress.set_step(std::min(rank.steps, progress.step() + 1));
          progress.set_steps(rank.steps);
          progress.set_step_seconds(kStepSeconds);
          progress.set_updated_unix_ms(unix_ms);
          const bool ends = rank.stops || progress.step() == rank.steps;
          if (ends && std::get<2>(key) == 0) {
            int64_t& newest = checkpoint(std::get<0>(key));
            newest = std::max(newest, progress.step());
            progress.set_checkpoint_step(newest);
          }
          if (!ends) break;
          rank.report.set_stopped_early(progress.step() < rank.steps);
          rank.report.set_state(v1::RANK_SUCCEEDED);
          break;
        }
        default:
          break;
      }
    }
  }

  // The `which`-th rank that lives dies, if there are so many.
  void Kill(size_t which) {
    for (auto& [key, rank] : ranks_) {
      if (!IsAlive(rank) || which-- > 0) continue;
      rank.report.set_state(v1::RANK_FAILED);
      rank.report.set_reason(v1::REASON_RANK_DIED);
      rank.report.set_message("killed by signal 9");
      return;
    }
  }
  // The machine begins anew: its ranks are gone and forgotten.
  void Reboot() { ranks_.clear(); }

  v1::WorkerMessage Heartbeat() const {
    v1::WorkerMessage message;
    message.mutable_heartbeat();
    for (const auto& [key, rank] : ranks_) *message.mutable_heartbeat()->add_ranks() = rank.report;
    return message;
  }

 private:
  static bool IsOf(const Key& key, const std::string& job, int64_t epoch) {
    return std::get<0>(key) == job && std::get<1>(key) == epoch;
  }

  void Start(const v1::RankConfig& config) {
    for (const auto& [key, rank] : ranks_) {
      if (std::get<0>(key) == config.job() && std::get<1>(key) > config.epoch()) return;
    }
    const auto [rank, is_new] =
        ranks_.try_emplace({config.job(), config.epoch(), config.rank()}, Rank());
    if (!is_new) return;
    rank->second.steps = config.spec().train().steps();
    v1::RankReport& report = rank->second.report;
    report.set_job(config.job());
    report.set_epoch(config.epoch());
    report.set_rank(config.rank());
    report.set_device(config.device());
    report.set_state(v1::RANK_PREPARING);
  }

  void Stop(const v1::StopRanks& stop) {
    for (auto next = ranks_.begin(); next != ranks_.end();) {
      auto& [key, rank] = *next;
      const bool meant = std::get<0>(key) == stop.job() && std::get<1>(key) <= stop.epoch();
      if (meant && stop.checkpoint()) rank.stops = true;
      next = meant && !stop.checkpoint() ? ranks_.erase(next) : std::next(next);
    }
  }

  v1::Node node_;
  std::map<Key, Rank> ranks_;
};

}  // namespace terrace
