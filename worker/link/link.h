// The link between a daemon and a rank: LinkMessages, each after a 4-byte little-endian length,
// over a Unix socket.
//
// The rank listens on <run_directory>/link.sock and lives on when the daemon goes away; a daemon
// that starts again dials the sockets it finds. One side sends from any thread, one thread
// receives.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/unique_fd.h"
#include "proto/v1/worker.pb.h"

namespace terrace {

inline constexpr uint32_t kMaxLinkMessageBytes = 16u << 20;

// A connected socket. Send is thread-safe; Receive is used on one thread.
class LinkConnection {
 public:
  explicit LinkConnection(UniqueFd fd) : fd_(std::move(fd)) {}

  // UNAVAILABLE when the peer is gone; never raises SIGPIPE.
  absl::Status Send(const v1::LinkMessage& message);
  // Blocks. UNAVAILABLE at end of stream, INVALID_ARGUMENT for an oversized or malformed message.
  absl::StatusOr<v1::LinkMessage> Receive();
  // Makes a blocked Receive return UNAVAILABLE. Thread-safe.
  void Shutdown();

 private:
  UniqueFd fd_;
  absl::Mutex send_mutex_;
};

// Listens on `path` (an old socket file there is replaced).
class LinkListener {
 public:
  static absl::StatusOr<LinkListener> Listen(std::string_view path);
  // Blocks until a daemon dials. UNAVAILABLE after Close.
  absl::StatusOr<std::unique_ptr<LinkConnection>> Accept();
  void Close();

 private:
  explicit LinkListener(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;
};

// UNAVAILABLE when nobody listens there.
absl::StatusOr<std::unique_ptr<LinkConnection>> DialLink(std::string_view path);

// The newest step whose end the message's events tell; 0: of none.
int64_t LastStep(const v1::LinkMessage& message);

}  // namespace terrace
