// The rank's end of the link: serves one daemon after the other and keeps training when there is
// none.
//
// State (the report, the metrics, keys set) is level-triggered: the latest is sent after a change
// and again to each daemon that connects. Events wait in a bounded queue; when it is full the
// oldest step event is dropped, never state. Steps, progress and metrics are sent together with all
// that is there, Options.news_wait after the message before: a message wakes three processes, each
// of which stops a thread that computes, so short steps share one. Anything else is sent at once.
// It also is the rendezvous store of ranks that a daemon started.
//
// Thread-safe. Three threads: one accepts, one receives, one sends; nobody else ever blocks on the
// socket.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/v1/worker.pb.h"
#include "worker/comm/communicator.h"
#include "worker/flight/flight_recorder.h"
#include "worker/link/link.h"

namespace terrace {

inline constexpr size_t kMaxQueuedEvents = 1024;
// Between two messages of steps. Shorter than the coordinator's Cluster::Beat, so that
// the daemon's heartbeats ride along with what it passes on.
inline constexpr absl::Duration kNewsWait = absl::Milliseconds(950);
// As many events wait no longer. The flight recorder keeps more steps than can wait here and in a
// message that is being sent together.
inline constexpr size_t kNewsEventsMax = kFlightSteps / 4;

// What a rank has to tell; whatever is not there stays as it was.
struct LinkNews {
  std::optional<v1::RankReport> report;
  std::optional<v1::RankMetrics> metrics;
  std::optional<v1::JobEvent> event;
};

class LinkServer final : public RendezvousStore {
 public:
  struct Options {
    std::string path;  // of the socket
    std::string job;
    int64_t epoch = 0;
    uint32_t rank = 0;
    std::function<void()> on_go;  // called on the receiving thread
    std::function<void(bool checkpoint)> on_stop;
    // May be empty. Called on the sending thread; the kernel has the message, so that it arrives
    // even if this process dies now.
    std::function<void(const v1::LinkMessage&)> on_sent;
    absl::Duration news_wait = kNewsWait;
  };
  static absl::StatusOr<std::unique_ptr<LinkServer>> Start(Options options);
  ~LinkServer() override;

  // A new state, a warning, an evaluation or a checkpoint is sent at once. The rest not later than
  // Options.news_wait after the message before, and at once when that was long ago or much waits.
  void Tell(LinkNews news);
  // Until everything is sent, no daemon is there, or `timeout` has passed.
  void Flush(absl::Duration timeout);

  // RendezvousStore, by way of the daemon.
  absl::Status Set(const std::string& key, const std::vector<char>& value) override;
  absl::StatusOr<std::vector<std::vector<char>>> Wait(const std::vector<std::string>& keys,
                                                      int64_t timeout_ms) override;

 private:
  // A KvWait that has no answer yet, or one that nobody has taken.
  struct PendingWait {
    v1::LinkMessage request;
    bool sent = false;
    bool answered = false;
    v1::KvValues answer;
  };

  LinkServer(Options options, LinkListener listener);
  void AcceptLoop();
  void ReceiveLoop(LinkConnection* connection);
  void SendLoop();
  void Adopt(std::shared_ptr<LinkConnection> connection);
  void Handle(const v1::LinkMessage& message);
  bool SomethingToSend() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  v1::LinkMessage NextMessage() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropEventsBeyondLimit() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  LinkListener listener_;

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool sending_ ABSL_GUARDED_BY(mutex_) = false;
  bool urgent_ ABSL_GUARDED_BY(mutex_) = false;  // what there is to send does not wait
  std::shared_ptr<LinkConnection> connection_
      ABSL_GUARDED_BY(mutex_);  // shared by the receiving and the sending thread
  v1::RankReport report_ ABSL_GUARDED_BY(mutex_);
  v1::RankMetrics metrics_ ABSL_GUARDED_BY(mutex_);
  bool has_report_ ABSL_GUARDED_BY(mutex_) = false, has_metrics_ ABSL_GUARDED_BY(mutex_) = false;
  bool report_sent_ ABSL_GUARDED_BY(mutex_) = true, metrics_sent_ ABSL_GUARDED_BY(mutex_) = true;
  std::vector<v1::LinkMessage> keys_ ABSL_GUARDED_BY(mutex_);  // all that were set
  size_t keys_sent_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, PendingWait> waits_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_request_ ABSL_GUARDED_BY(mutex_) = 1;
  std::deque<v1::JobEvent> events_ ABSL_GUARDED_BY(mutex_);

  std::thread receiver_;  // of the present connection; handled by the accepting thread alone
  std::thread acceptor_;
  std::thread sender_;
};

}  // namespace terrace
