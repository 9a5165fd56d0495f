// The key-value store through which the ranks of one gang find each other, scoped to (job, epoch):
// addresses go in, and whoever waits for a set of keys is answered when all are there.
//
// It is kept in memory only: after a restart of the coordinator the workers send their keys and
// open waits again. Used only on the control loop's thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proto/v1/worker.pb.h"

namespace terrace {

inline constexpr size_t kRendezvousKeysMax = 65536;  // per gang
inline constexpr size_t kRendezvousKeysPerRankMax = 1024;
inline constexpr size_t kRendezvousKeyBytesMax = 256;
inline constexpr size_t kRendezvousValueBytesMax = 1 << 20;
inline constexpr size_t kRendezvousWaitsMax = 65536;  // of all gangs
inline constexpr size_t kRendezvousWaitsPerRankMax = 16;
inline constexpr int64_t kRendezvousWaitMsMax = int64_t{24} * 3'600'000;

// Of the keys and values of one gang. Each member of a group tells the others an address for each
// of them, so it grows with their square.
inline constexpr int64_t RendezvousBytesMax(int64_t ranks) {
  return (int64_t{16} << 20) + ranks * ((int64_t{64} << 10) + ranks * 1024);
}

class Rendezvous {
 public:
  struct Answer {
    std::string worker;
    v1::KvValues values;
  };

  // RESOURCE_EXHAUSTED beyond the limits above, of a gang of so many ranks. Setting a key again
  // replaces its value.
  absl::Status Set(const v1::KvSet& set, int64_t ranks);
  // The same wait of the same worker again (after a reconnect) replaces the old one.
  absl::Status Wait(std::string_view worker, const v1::KvWait& wait, int64_t ranks, int64_t now_ns);
  // Takes the waits that are complete, and those that have expired, with an error that names a
  // missing key.
  std::vector<Answer> TakeAnswers(int64_t now_ns);
  // Drops the keys and waits of this epoch and older ones.
  void Forget(std::string_view job, int64_t epoch);

 private:
  using Scope = std::pair<std::string, int64_t>;  // job, epoch
  struct Pending {
    std::string worker;
    v1::KvWait wait;
    int64_t deadline_ns = 0;
  };

  // Empty when all keys are there.
  std::string MissingKey(const v1::KvWait& wait) const;

  struct Gang {
    std::map<std::string, std::string> values;
    int64_t bytes = 0;  // of keys and values
  };
  std::map<Scope, Gang> gangs_;
  std::vector<Pending> pending_;
};

}  // namespace terrace
