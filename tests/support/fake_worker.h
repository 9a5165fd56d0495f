// A worker daemon without processes: it carries out the coordinator's commands on a table of ranks
// and reports the table. Tests change the table as processes would. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "proto/v1/worker.pb.h"

namespace terrace {

class FakeWorker {
 public:
  FakeWorker(std::string name, uint32_t devices) {
    node_.set_name(std::move(name));
    node_.set_devices(devices);
    node_.set_threads_per_device(1);
  }

  const v1::Node& node() const { return node_; }
  v1::Node& mutable_node() { return node_; }  // what it registers as from then on
  const std::string& name() const { return node_.name(); }

  void Handle(const v1::CoordinatorMessage& message) {
    if (deaf) return;
    received.push_back(message);
    if (message.has_start()) {
      for (const v1::RankConfig& config : message.start().ranks()) Start(config);
    } else if (message.has_go()) {
      SetAll(message.go().job(), v1::RANK_RUNNING);
    } else if (message.has_stop() && !message.stop().checkpoint()) {
      std::erase_if(ranks, [&](const auto& entry) {
        return entry.second.job() == message.stop().job() &&
               entry.second.epoch() <= message.stop().epoch();
      });
    } else if (message.has_stop()) {
      for (auto& [rank, report] : ranks) report.set_stopped_early(true);
      SetAll(message.stop().job(), v1::RANK_SUCCEEDED);
    }
  }

  void SetAll(const std::string& job, v1::RankState state) {
    for (auto& [rank, report] : ranks) {
      if (report.job() == job) report.set_state(state);
    }
  }

  v1::WorkerMessage Heartbeat() const {
    v1::WorkerMessage message;
    message.mutable_heartbeat();
    for (const auto& [rank, report] : ranks) *message.mutable_heartbeat()->add_ranks() = report;
    return message;
  }

  int CountStarts() const {
    int count = 0;
    for (const v1::CoordinatorMessage& message : received) count += message.has_start();
    return count;
  }

  std::map<std::pair<std::string, uint32_t>, v1::RankReport> ranks;  // by job and rank
  std::vector<v1::CoordinatorMessage> received;
  bool deaf = false;  // carries nothing out

 private:
  void Start(const v1::RankConfig& config) {
    v1::RankReport& report = ranks[{config.job(), config.rank()}];
    report.set_job(config.job());
    report.set_epoch(config.epoch());
    report.set_rank(config.rank());
    report.set_device(config.device());
    report.set_state(v1::RANK_PREPARING);
  }

  v1::Node node_;
};

}  // namespace terrace
