// Unary calls that are answered on the control loop, and measured.
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <chrono>
#include <functional>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "base/loop.h"
#include "coordinator/server/rpc.h"

namespace terrace {

class UnaryCalls {
 public:
  // `loop` is borrowed.
  UnaryCalls(Loop& loop, RpcObserver observe) : loop_(loop), observe_(std::move(observe)) {}

  // Ends the call, and says how long it took; from any thread. `method` outlives it.
  std::function<void(const absl::Status&)> Finisher(std::string_view method,
                                                    grpc::ServerUnaryReactor* reactor) const {
    const auto start = std::chrono::steady_clock::now();
    return [this, method, reactor, start](const absl::Status& status) {
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      observe_(method, absl::StatusCodeToString(status.code()), took.count());
      reactor->Finish(ToGrpc(status));
    };
  }

  grpc::ServerUnaryReactor* OnLoop(std::string_view method, grpc::CallbackServerContext* context,
                                   std::function<absl::Status()> work) const {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    auto finish = Finisher(method, reactor);
    loop_.Post([finish, work = std::move(work)] { finish(work()); });
    return reactor;
  }

 private:
  Loop& loop_;
  const RpcObserver observe_;
};

}  // namespace terrace
