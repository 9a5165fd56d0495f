// The daemon's end of the coordinator's stream: dials, registers, and dials again with growing
// pauses for as long as it lives.
//
// Messages are written by one thread from a bounded queue; what cannot be sent because there is no
// connection is dropped: state is reported afresh after each registration, and whoever needs more
// keeps it (Supervisor::Resend).
//
// Handlers are called on the agent's thread. Send is thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/v1/worker.pb.h"

namespace terrace {

inline constexpr size_t kAgentBytesQueuedMax = size_t{64} << 20;

class Agent {
 public:
  struct Options {
    std::string coordinator;                // host:port
    std::string tls_cert, tls_key, tls_ca;  // PEM files; all or none
    bool insecure = false;                  // allows no TLS off loopback
    v1::Node node;
  };
  struct Handlers {
    std::function<void(const v1::RegisterReply&)> on_registered;
    std::function<void(const v1::CoordinatorMessage&)> on_message;
    std::function<void()> on_disconnected;
  };

  // INVALID_ARGUMENT: bad TLS files, or none where they are needed.
  static absl::StatusOr<std::unique_ptr<Agent>> Create(Options options, Handlers handlers);
  ~Agent();

  void Start();
  // Ends the stream and the threads.
  void Stop();
  // Reads the TLS files again: connections from now on use them, and the present one is made anew.
  // INVALID_ARGUMENT: they do not fit, and nothing changes. Thread-safe.
  absl::Status Reload();
  // What later registrations say. Thread-safe.
  void SetProfile(const v1::HardwareProfile& profile);
  // False when it was dropped.
  bool Send(const v1::WorkerMessage& message);

 private:
  class Impl;
  explicit Agent(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace terrace
