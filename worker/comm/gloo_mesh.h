// The members of a group, connected pair by pair over Gloo's TCP transport, and memory to send from
// and receive into. Gloo throws; nothing leaves this file but a Status.
//
// A receive is announced to the sender before any byte moves, so nothing is buffered on the way.
// Messages of one tag and direction between two members arrive in order.
//
// When a connection breaks, Gloo tells those whose messages have not begun. One of which a part is
// on its way is on none of the lists that it goes through (Pair::signalException), and whoever
// waits for that would sit out the group's timeout. So a thread of the mesh interrupts waits that
// last, and they look whether the connection still stands.
//
// GlooMesh is thread-safe; a Window is used on one thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "worker/comm/communicator.h"
#include "worker/comm/pacer.h"

namespace gloo {
class Context;
namespace transport {
class UnboundBuffer;
}  // namespace transport
}  // namespace gloo

namespace terrace {

enum class Tag : uint64_t { kCollective = 1, kMessage = 2, kQuestion = 3 };

class Window;

class GlooMesh {
 public:
  // UNAVAILABLE when a member does not come in time.
  static absl::StatusOr<std::unique_ptr<GlooMesh>> Connect(const GroupOptions& options,
                                                           RendezvousStore* store);
  ~GlooMesh();

  int rank() const { return options_.rank; }
  int size() const { return options_.size; }
  int Right(int distance = 1) const { return (rank() + distance) % size(); }
  int Left(int distance = 1) const { return (rank() + size() - distance) % size(); }
  int64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
  void ResetBytesSent() { bytes_sent_.store(0); }

  absl::Status Barrier();
  void Abort() ABSL_LOCKS_EXCLUDED(mutex_);
  // For Window::Send; 0 when nothing is slowed.
  int64_t NowNanos() const { return pacers_.empty() ? 0 : Pacer::NowNanos(); }

 private:
  friend class Window;
  using Buffer = gloo::transport::UnboundBuffer;

  GlooMesh(const GroupOptions& options, std::shared_ptr<gloo::Context> context);
  void Register(Window* window) ABSL_LOCKS_EXCLUDED(mutex_);
  void Unregister(Window* window) ABSL_LOCKS_EXCLUDED(mutex_);
  void InterruptLongWaits() ABSL_LOCKS_EXCLUDED(mutex_);  // until the mesh ends
  // UNAVAILABLE; `peer` is -1 when any may be the one.
  absl::Status Lost(int peer, std::string_view problem) const;
  // The member whose connection has this problem: Gloo tells whoever waits for a window that one of
  // its messages failed, a send to one side also to those who wait for the other. Else `asked`.
  int PeerWith(std::string_view problem, int asked) const;
  // Of the connection to a member, or of the first that has one (-1); empty while they stand.
  std::string ProblemOf(int peer) const ABSL_LOCKS_EXCLUDED(questions_mutex_);
  absl::Status Aborted() const;
  void Pace(Tag tag, int to, int64_t bytes, int64_t ready_ns);

  const GroupOptions options_;
  const std::shared_ptr<gloo::Context> context_;
  std::vector<std::unique_ptr<Pacer>> pacers_;  // by peer, own index: collectives; empty: none
  std::atomic<int64_t> bytes_sent_{0};
  std::atomic<bool> aborted_{false};
  absl::Mutex mutex_;
  std::set<Window*> windows_ ABSL_GUARDED_BY(mutex_);  // that somebody may be waiting for
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  // By peer: takes part in a message that never comes, so that Gloo tells it what breaks the
  // connection.
  mutable absl::Mutex questions_mutex_;
  mutable std::vector<std::unique_ptr<Buffer>> questions_ ABSL_GUARDED_BY(questions_mutex_);
  std::thread interrupts_;
};

// Memory that takes part in messages. Posted operations go on in the background and are waited for
// in the order in which they were posted; those that nobody waited for are given up in the end.
// Borrows the mesh and the memory.
class Window {
 public:
  Window(GlooMesh* mesh, Tag tag, void* data, int64_t bytes);
  Window(GlooMesh* mesh, Tag tag, const void* data, int64_t bytes)  // to send from only
      : Window(mesh, tag, const_cast<void*>(data), bytes) {}
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  // Bytes [offset, offset + bytes), which must not be empty. `ready_ns`: when they were ready, by
  // GlooMesh::NowNanos.
  absl::Status Send(int to, int64_t offset, int64_t bytes, int64_t ready_ns);
  absl::Status Receive(int from, int64_t offset, int64_t bytes);
  // For the oldest. `peer` is its other end, for the message; -1: any.
  absl::Status WaitSent(int peer);
  absl::Status WaitReceived(int peer);

 private:
  friend class GlooMesh;
  enum class Direction { kSend, kReceive };

  absl::Status Wait(Direction direction, int peer);
  // Until it completes; false when it was interrupted.
  bool WaitOnce(Direction direction);
  // From any thread: once, what waits or the next that does.
  void Interrupt(Direction direction);
  void InterruptIfSince(int64_t nanos);  // what has waited since then or longer

  GlooMesh* const mesh_;
  const Tag tag_;
  const std::unique_ptr<GlooMesh::Buffer> buffer_;
  std::atomic<int64_t> sends_since_ns_{0};  // a wait began; 0: nothing waits
  std::atomic<int64_t> receives_since_ns_{0};
};

}  // namespace terrace
