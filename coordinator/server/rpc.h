// What both services share: status codes between Abseil and gRPC, limits of the transport, and how
// calls are measured.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/support/status.h>

#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace terrace {

// The largest message either side sends: a StartRanks of kRanksPerNodeMax ranks with their specs,
// or an explained program.
inline constexpr int kRpcMessageBytesMax = 64 << 20;

// The codes of both are the same numbers.
inline grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      CleanText(Std(status.message())));
}

// Called at the end of each unary call; `code` is a name of grpc's status codes. Thread-safe.
using RpcObserver =
    std::function<void(std::string_view method, std::string_view code, double seconds)>;

}  // namespace terrace
