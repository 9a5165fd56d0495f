// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planning/caching_planner.h"

#include <iterator>
#include <optional>
#include <utility>

#include "proto/program/program_hash.h"

namespace terrace {
namespace {

// Names what its plan depends on; empty: it is no plan of a job.
std::string KeyOf(const v1::PlannerRequest& request) {
  if (!request.has_plan() || request.plan().has_listing()) return "";
  v1::PlanWork work = request.plan();
  v1::JobSpec& spec = *work.mutable_spec();
  spec.clear_name();  // it is in the answer alone
  spec.clear_priority();
  spec.clear_max_restarts();
  spec.clear_watchdog();
  spec.clear_time_limit_seconds();
  spec.clear_checkpoint();
  spec.clear_yaml();
  return Sha256Hex(work.SerializeAsString());
}

v1::PlannerAnswer For(const v1::PlannerRequest& request, v1::PlannerAnswer answer) {
  answer.mutable_plan()->set_job(request.plan().spec().name());
  return answer;
}

}  // namespace

void CachingPlanner::Start(Work work) {
  const std::string key = KeyOf(work.request);
  if (key.empty()) return planner_.Start(std::move(work));
  std::optional<v1::PlannerAnswer> answer;
  {
    absl::MutexLock lock(&mutex_);
    if (const auto found = by_key_.find(key); found != by_key_.end()) {
      kept_.splice(kept_.begin(), kept_, found->second);
      answer = found->second->answer;
    } else if (const auto other = under_way_.find(key); other != under_way_.end()) {
      other->second.push_back(std::move(work));
      return;
    } else {
      under_way_[key];
    }
  }
  if (answer.has_value()) return work.done(For(work.request, *std::move(answer)));
  std::vector<Work> one;
  one.push_back(std::move(work));
  Lead(key, std::move(one));
}

void CachingPlanner::Lead(const std::string& key, std::vector<Work> same) {
  Work leader = std::move(same.back());
  same.pop_back();
  {
    absl::MutexLock lock(&mutex_);
    std::vector<Work>& waiting = under_way_[key];
    waiting.insert(waiting.end(), std::make_move_iterator(same.begin()),
                   std::make_move_iterator(same.end()));
  }
  Work asked = leader;
  asked.done = [this, key, leader = std::move(leader)](absl::StatusOr<v1::PlannerAnswer> answer) {
    Finish(key, leader, std::move(answer));
  };
  planner_.Start(std::move(asked));
}

void CachingPlanner::Finish(const std::string& key, Work leader,
                            absl::StatusOr<v1::PlannerAnswer> answer) {
  const bool is_plan = answer.ok() && answer->code() == 0;
  // Nobody plans now: that is so for the others, too.
  const bool is_for_all = is_plan || absl::IsUnavailable(answer.status());
  std::vector<Work> same;
  {
    absl::MutexLock lock(&mutex_);
    if (is_plan) Keep(key, *answer);
    same = std::move(under_way_[key]);
    under_way_.erase(key);
    if (!is_for_all && !same.empty()) under_way_[key];
  }
  leader.done(answer);
  if (is_for_all) {
    for (const Work& work : same)
      work.done(is_plan ? absl::StatusOr<v1::PlannerAnswer>(For(work.request, *answer)) : answer);
  } else if (!same.empty()) {
    // It was refused, or nobody waits for it any more: the next is asked for itself.
    Lead(key, std::move(same));
  }
}

void CachingPlanner::Keep(const std::string& key, const v1::PlannerAnswer& answer) {
  if (by_key_.contains(key)) return;
  const size_t bytes = answer.ByteSizeLong();
  if (bytes > bytes_kept_) return;
  kept_.push_front({key, answer, bytes});
  by_key_[key] = kept_.begin();
  bytes_ += bytes;
  while (bytes_ > bytes_kept_) {
    bytes_ -= kept_.back().bytes;
    by_key_.erase(kept_.back().key);
    kept_.pop_back();
  }
}

}  // namespace terrace
