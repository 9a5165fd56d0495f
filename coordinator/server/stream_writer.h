// A server-side stream of messages that is driven from the control loop: push, and they are written
// one after another.
//
// gRPC's callbacks only post to the loop, so subclasses need no locks. The object keeps itself
// alive until gRPC is done with it (KeepAlive); closures that may run later hold weak pointers.
// Used only on the control loop's thread, except for the gRPC callbacks.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/support/server_callback.h>

#include <deque>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "base/loop.h"
#include "coordinator/server/rpc.h"

namespace terrace {

template <typename Message>
class StreamWriter : public grpc::ServerWriteReactor<Message>,
                     public std::enable_shared_from_this<StreamWriter<Message>> {
 public:
  // Writes the next message; asks for more when there is none.
  void Advance() {
    if (ended_ || writing_) return;
    if (queue_.empty()) Refill();
    if (ended_ || queue_.empty()) return;
    writing_ = true;
    this->StartWrite(&queue_.front());
  }

 protected:
  explicit StreamWriter(Loop& loop) : loop_(loop) {}

  void KeepAlive(std::shared_ptr<StreamWriter> self) { self_ = std::move(self); }
  void Push(Message message) { queue_.push_back(std::move(message)); }

  // Ends the stream, after the write under way.
  void End(const absl::Status& status) {
    if (ended_) return;
    ended_ = true;
    Ended();
    status_ = ToGrpc(status);
    if (!writing_) this->Finish(status_);
  }

  // Pushes what there is to write now, or ends the stream.
  virtual void Refill() = 0;
  // Once, when the stream ends for whatever reason.
  virtual void Ended() = 0;

 private:
  void OnWriteDone(bool ok) final {
    loop_.Post([self = this->shared_from_this(), ok] {
      self->writing_ = false;
      self->queue_.pop_front();
      if (self->ended_) return self->Finish(self->status_);
      if (!ok) return self->End(absl::CancelledError("the client has gone"));
      self->Advance();
    });
  }
  void OnCancel() final {
    loop_.Post([self = this->shared_from_this()] {
      self->End(absl::CancelledError("the client has gone"));
    });
  }
  void OnDone() final { self_.reset(); }

  Loop& loop_;
  std::shared_ptr<StreamWriter> self_;  // until OnDone
  std::deque<Message> queue_;           // the front is being written while writing_
  bool writing_ = false;
  bool ended_ = false;
  grpc::Status status_;
};

}  // namespace terrace
