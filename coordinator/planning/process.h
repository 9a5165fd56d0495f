// One planner process: this program again, as `terrace-coordinator planner`, at the other end of a
// socket. It answers one request after another; what it does to itself is an error of the request
// that it works on.
//
// Used on the thread that started it: the process dies with that thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/unique_fd.h"
#include "proto/v1/planning.pb.h"

namespace terrace {

// Between two looks at a process that works.
inline constexpr absl::Duration kWatchEvery = absl::Milliseconds(50);

class PlannerProcess {
 public:
  // Called each kWatchEvery with the memory that the process holds. Not OK: it is killed, and that
  // is Ask()'s result.
  using Watch = std::function<absl::Status(int64_t held_bytes)>;

  // `program` is run with the argument "planner" and these.
  static absl::StatusOr<std::unique_ptr<PlannerProcess>> Start(
      const std::string& program, std::vector<std::string> arguments = {});
  // Kills it. Waits until it is gone, but not for one that the system does not let go.
  ~PlannerProcess();
  PlannerProcess(const PlannerProcess&) = delete;
  PlannerProcess& operator=(const PlannerProcess&) = delete;

  using Tell = std::function<void(const v1::EvaluationProgress&)>;
  // Its answer, whatever that says. ABORTED: it died, with how. After an error nothing more can be
  // asked. `tell`, which may be
  // empty, is told how far it is meanwhile.
  absl::StatusOr<v1::PlannerAnswer> Ask(const v1::PlannerRequest& request, const Watch& watch,
                                        const Tell& tell = {});
  // It has answered all that it was asked, and lives.
  bool IsIdle() const;
  // Resident and swapped out; 0 when it is gone.
  int64_t HeldBytes() const;
  // Behind whatever else wants the processors.
  void Yield() const;

 private:
  PlannerProcess(pid_t pid, UniqueFd socket) : pid_(pid), socket_(std::move(socket)) {}

  absl::Status SendSome(std::string_view* rest);
  // True when the other end was closed.
  absl::StatusOr<bool> ReceiveSome(std::string* bytes);
  // Also what it is when nothing ended it but us.
  std::string HowItEnded();

  pid_t pid_;  // 0: waited for
  UniqueFd socket_;
};

}  // namespace terrace
