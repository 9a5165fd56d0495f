// Reads ranks' logs for the coordinator: the last lines, then what is added while somebody follows;
// or all behind a position, in that epoch's log and in those of later epochs.
// A rank's trace is read in the same way, whole.
//
// Used only on the daemon's loop.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "proto/v1/worker.pb.h"

namespace terrace {

inline constexpr int64_t kLogTailBytesMax =
    16 << 20;  // the most that is sent of what is there already, and in one reading of a position
inline constexpr int64_t kLogChunkBytes = 64 << 10;
inline constexpr size_t kLogsReadMax = 64;

class LogReader {
 public:
  struct Ports {
    std::function<bool(const v1::WorkerMessage&)> send;  // false: dropped
    std::function<bool(std::string_view job, uint32_t rank)> is_live;
  };
  LogReader(std::string_view state_directory, Ports ports);

  void Handle(const v1::ReadLog& request);
  // Sends what was added; ends the readers whose rank has ended. Call a few times a second while
  // active().
  void Poll();
  void Clear() { open_.clear(); }
  bool active() const { return !open_.empty(); }

 private:
  struct Open {
    v1::ReadLog request;
    UniqueFd file;  // none: only the error is still to be told
    std::string path;
    int64_t epoch = 0;  // 0: of a trace, which has no position
    int64_t offset = 0;
    int64_t sent = 0;   // bytes
    std::string error;  // why there is no file, or why it cannot be read to its end
  };

  // False when the reader is done.
  bool Advance(Open& open);
  enum class Sent { kAll, kNoRoom, kUnreadable };
  // What the present file holds. kUnreadable: `open.error` says why.
  Sent SendRest(Open& open);
  // Goes on with the log of the next epoch, where one is there.
  bool OpenNext(Open& open) const;
  // NOT_FOUND when there is none; RESOURCE_EXHAUSTED when too many are read.
  absl::Status Find(Open& open) const;
  absl::StatusOr<std::string> NewestPath(const v1::ReadLog& request) const;
  // Whether more may come: its rank lives, and has not been started again with another log.
  bool IsWritten(const Open& open) const;

  const std::string state_directory_;
  const Ports ports_;
  std::map<uint64_t, Open> open_;
};

}  // namespace terrace
