// The rank's end of the link: serves one daemon after the other and keeps training when there is
// none.
//
// State (the report, the metrics, keys set) is level-triggered: the latest is sent on every change
// and again to each daemon that connects. Events wait in a bounded queue; when it is full the
// oldest step event is dropped, never state. It also is the rendezvous store of ranks that a daemon
// started.
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
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "proto/v1/worker.pb.h"
#include "worker/comm/communicator.h"
#include "worker/link.h"

namespace terrace {

inline constexpr size_t kMaxQueuedEvents = 1024;

class LinkServer final : public RendezvousStore {
 public:
  struct Options {
    std::string path;  // of the socket
    std::string job;
    int64_t epoch = 0;
    uint32_t rank = 0;
    std::function<void()> on_go;  // called on the receiving thread
    std::function<void(bool checkpoint)> on_stop;
  };
  static absl::StatusOr<std::unique_ptr<LinkServer>> Start(Options options);
  ~LinkServer() override;

  void SetReport(const v1::RankReport& report);
  void SetMetrics(const v1::RankMetrics& metrics);
  void AddEvent(v1::JobEvent event);
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
  void DropOldestStep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  LinkListener listener_;

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool sending_ ABSL_GUARDED_BY(mutex_) = false;
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
