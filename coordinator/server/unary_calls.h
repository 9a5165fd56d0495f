// Unary calls that are answered on the control loop, measured, and written down where they change
// something.
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "base/loop.h"
#include "coordinator/server/call_guard.h"
#include "coordinator/server/rpc.h"

namespace terrace {

class UnaryCalls {
 public:
  // Both are borrowed.
  UnaryCalls(Loop& loop, const CallGuard& guard) : loop_(loop), guard_(guard) {}

  const CallGuard& guard() const { return guard_; }

  // Ends the call; from any thread.
  std::function<void(const absl::Status&)> Finisher(std::shared_ptr<GuardedCall> call,
                                                    grpc::ServerUnaryReactor* reactor) const {
    return [this, call = std::move(call), reactor](const absl::Status& status) {
      guard_.End(*call, status);
      reactor->Finish(ToGrpc(status));
    };
  }

  // `method` is a name of the table of access.h. `work` runs on the loop.
  grpc::ServerUnaryReactor* OnLoop(std::string_view method, grpc::CallbackServerContext* context,
                                   std::function<absl::Status(GuardedCall&)> work) const {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    std::shared_ptr<GuardedCall> call = guard_.Begin(method, *context);
    auto finish = Finisher(call, reactor);
    loop_.Post([finish, call, work = std::move(work)] { finish(work(*call)); });
    return reactor;
  }

 private:
  Loop& loop_;
  const CallGuard& guard_;
};

}  // namespace terrace
