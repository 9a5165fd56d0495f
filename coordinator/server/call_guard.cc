// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/call_guard.h"

#include <grpc/grpc_security_constants.h>

#include <string>
#include <utility>

#include "absl/time/clock.h"

namespace terrace {
namespace {

std::string PropertyOf(const grpc::AuthContext& context, const char* name) {
  const std::vector<grpc::string_ref> values = context.FindPropertyValues(name);
  return values.empty() ? "" : std::string(values.front().data(), values.front().size());
}

}  // namespace

Shown ShownBy(const grpc::CallbackServerContext& context) {
  Shown shown{.certificate = {}, .chain = {}, .authorization = {}, .peer = context.peer()};
  if (const auto tls = context.auth_context(); tls != nullptr) {
    shown.certificate = PropertyOf(*tls, GRPC_X509_PEM_CERT_PROPERTY_NAME);
    shown.chain = PropertyOf(*tls, GRPC_X509_PEM_CERT_CHAIN_PROPERTY_NAME);
  }
  const auto& metadata = context.client_metadata();
  const auto found =
      metadata.find(grpc::string_ref(kAuthorizationKey.data(), kAuthorizationKey.size()));
  if (found != metadata.end())
    shown.authorization = std::string(found->second.data(), found->second.size());
  return shown;
}

std::shared_ptr<GuardedCall> CallGuard::Begin(std::string_view method,
                                              const grpc::CallbackServerContext& context) const {
  auto call = std::make_shared<GuardedCall>();
  call->rule = &RuleOf(method);
  call->changes = call->rule->changes;
  call->record.call = std::string(method);
  call->start = std::chrono::steady_clock::now();
  const Shown shown = ShownBy(context);
  Refusal ignored;
  // It was admitted a moment ago. Whoever's certificate has run out since is nobody.
  if (auto caller = gate_.Identify(shown, absl::Now(), &ignored); caller.ok()) {
    call->record.caller = *std::move(caller);
  } else {
    call->record.caller = {
        .shown = Caller::Shown::kCertificate, .identity = {}, .peer = shown.peer};
  }
  return call;
}

absl::Status CallGuard::CheckJob(const GuardedCall& call, std::string_view job,
                                 std::string_view owner) const {
  absl::Status status = CheckJobCall(*call.rule, call.record.caller, job, owner);
  if (!status.ok()) gate_.Count(Refusal::kNotOwn);
  return status;
}

absl::Status CallGuard::CheckNode(const GuardedCall& call, std::string_view node) const {
  absl::Status status = CheckNodeCall(*call.rule, call.record.caller, node);
  if (!status.ok()) gate_.Count(Refusal::kNotOwn);
  return status;
}

void CallGuard::End(GuardedCall& call, const absl::Status& status) const {
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - call.start;
  observe_(call.rule->method, absl::StatusCodeToString(status.code()), took.count());
  if (!call.changes) return;
  call.record.status = status;
  Note(call.record);
}

}  // namespace terrace
