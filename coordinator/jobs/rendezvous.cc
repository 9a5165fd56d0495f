// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/rendezvous.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace terrace {

absl::Status Rendezvous::Set(const v1::KvSet& set, int64_t ranks) {
  if (set.key().size() > kRendezvousKeyBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "rendezvous key of ", set.key().size(), " bytes; the limit is ", kRendezvousKeyBytesMax));
  }
  if (set.value().size() > kRendezvousValueBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat("rendezvous value of ", set.value().size(),
                                                     " bytes; the limit is ",
                                                     kRendezvousValueBytesMax));
  }
  Gang& gang = gangs_[{set.job(), set.epoch()}];
  const auto found = gang.values.find(set.key());
  const size_t keys_max =
      std::min(kRendezvousKeysMax, kRendezvousKeysPerRankMax * static_cast<size_t>(ranks));
  if (gang.values.size() >= keys_max && found == gang.values.end()) {
    return absl::ResourceExhaustedError(absl::StrCat("job ", set.job(), " has ", gang.values.size(),
                                                     " rendezvous keys, the limit"));
  }
  const size_t before = found == gang.values.end() ? 0 : set.key().size() + found->second.size();
  const int64_t bytes = gang.bytes + static_cast<int64_t>(set.key().size() + set.value().size()) -
                        static_cast<int64_t>(before);
  if (bytes > RendezvousBytesMax(ranks)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "job ", set.job(), " has ", gang.bytes, " bytes of rendezvous values; the limit for ",
        ranks, " ranks is ", RendezvousBytesMax(ranks)));
  }
  gang.bytes = bytes;
  gang.values[set.key()] = set.value();
  return absl::OkStatus();
}

absl::Status Rendezvous::Wait(std::string_view worker, const v1::KvWait& wait, int64_t ranks,
                              int64_t now_ns) {
  const auto same = [&](const Pending& pending) {
    return pending.worker == worker && pending.wait.job() == wait.job() &&
           pending.wait.epoch() == wait.epoch() && pending.wait.rank() == wait.rank() &&
           pending.wait.request() == wait.request();
  };
  std::erase_if(pending_, same);
  if (pending_.size() >= kRendezvousWaitsMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("there are ", pending_.size(), " open rendezvous waits, the limit"));
  }
  const auto of_gang = std::count_if(pending_.begin(), pending_.end(), [&](const Pending& other) {
    return other.wait.job() == wait.job() && other.wait.epoch() == wait.epoch();
  });
  if (of_gang >= ranks * static_cast<int64_t>(kRendezvousWaitsPerRankMax) ||
      static_cast<size_t>(wait.keys_size()) > kRendezvousKeysMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "job ", wait.job(), " of ", ranks, " ranks has ", of_gang,
        " open rendezvous waits and wants another for ", wait.keys_size(), " keys; the limits are ",
        kRendezvousWaitsPerRankMax, " a rank, and ", kRendezvousKeysMax, " keys"));
  }
  const int64_t timeout_ms = std::clamp(wait.timeout_ms(), int64_t{0}, kRendezvousWaitMsMax);
  pending_.push_back({.worker = std::string(worker),
                      .wait = wait,
                      .deadline_ns = now_ns + timeout_ms * 1'000'000});
  return absl::OkStatus();
}

std::string Rendezvous::MissingKey(const v1::KvWait& wait) const {
  const auto gang = gangs_.find({wait.job(), wait.epoch()});
  for (const std::string& key : wait.keys()) {
    if (gang == gangs_.end() || !gang->second.values.contains(key)) return key;
  }
  return "";
}

std::vector<Rendezvous::Answer> Rendezvous::TakeAnswers(int64_t now_ns) {
  std::vector<Answer> answers;
  std::erase_if(pending_, [&](const Pending& pending) {
    const v1::KvWait& wait = pending.wait;
    const std::string missing = MissingKey(wait);
    if (!missing.empty() && now_ns < pending.deadline_ns) return false;
    Answer& answer = answers.emplace_back();
    answer.worker = pending.worker;
    answer.values.set_job(wait.job());
    answer.values.set_epoch(wait.epoch());
    answer.values.set_request(wait.request());
    answer.values.set_rank(wait.rank());
    if (!missing.empty()) {
      answer.values.set_error(
          absl::StrCat("no rank has set ", missing, " within ", wait.timeout_ms(), " ms"));
      return true;
    }
    for (const std::string& key : wait.keys()) {
      answer.values.add_values(gangs_[{wait.job(), wait.epoch()}].values[key]);
    }
    return true;
  });
  return answers;
}

void Rendezvous::Forget(std::string_view job, int64_t epoch) {
  std::erase_if(gangs_, [&](const auto& entry) {
    return entry.first.first == job && entry.first.second <= epoch;
  });
  std::erase_if(pending_, [&](const Pending& pending) {
    return pending.wait.job() == job && pending.wait.epoch() <= epoch;
  });
}

}  // namespace terrace
