// What every call of a service goes through after it was admitted: who calls, whether it may do
// this to that job or worker, how long it took, and the audit log.
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/server_context.h>

#include <chrono>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "coordinator/server/access.h"
#include "coordinator/server/audit.h"
#include "coordinator/server/gatekeeper.h"
#include "coordinator/server/rpc.h"

namespace terrace {

// What a connection and a call show.
Shown ShownBy(const grpc::CallbackServerContext& context);

// A call that is under way. Its record is filled in by whoever answers it.
struct GuardedCall {
  const CallRule* rule = nullptr;
  bool changes = false;  // as the rule has it, until it is found that this call does not
  AuditRecord record;
  std::chrono::steady_clock::time_point start;
};

class CallGuard {
 public:
  // `audit` may be null: nothing is written down. All are borrowed.
  CallGuard(Gatekeeper& gate, AuditLog* audit, RpcObserver observe)
      : gate_(gate), audit_(audit), observe_(std::move(observe)) {}

  // Shared by the closures that answer it.
  std::shared_ptr<GuardedCall> Begin(std::string_view method,
                                     const grpc::CallbackServerContext& context) const;
  // PERMISSION_DENIED: the caller may not do this to that job or worker; counted.
  absl::Status CheckJob(const GuardedCall& call, std::string_view job,
                        std::string_view owner) const;
  absl::Status CheckNode(const GuardedCall& call, std::string_view node) const;
  void End(GuardedCall& call, const absl::Status& status) const;

  Gatekeeper& gate() const { return gate_; }
  // A line of its own.
  void Note(const AuditRecord& record) const {
    if (audit_ != nullptr) audit_->Write(record);
  }

 private:
  Gatekeeper& gate_;
  AuditLog* const audit_;
  const RpcObserver observe_;
};

}  // namespace terrace
