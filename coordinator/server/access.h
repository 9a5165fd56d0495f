// Who may make which call: one table, a row for each call of each service.
//
// Pure. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "base/tls/identity.h"

namespace terrace {

enum class May {
  kNo,
  kOwn,  // of a person: the jobs that it submitted; of a worker: itself
  kYes,
};

struct CallRule {
  std::string_view service;     // "terrace.v1.JobService"
  std::string_view method;      // "Cancel"; no two services of ours have the same
  bool changes = false;         // something: it is in the audit log
  std::array<May, kRoles> may;  // by Role

  May For(Role role) const { return may[static_cast<size_t>(role)]; }
};

std::span<const CallRule> CallRules();
// Of "/terrace.v1.JobService/Cancel"; null: there is no such call.
const CallRule* RuleOfPath(std::string_view path);
// Of "Cancel". The method exists.
const CallRule& RuleOf(std::string_view method);

// Who makes a call.
struct Caller {
  // How it showed who it is. kNot: nobody is asked without TLS, and everybody may everything.
  enum class Shown { kNot, kCertificate, kToken };
  Shown shown = Shown::kNot;
  Identity identity;
  std::string peer;  // "ipv4:10.0.0.7:51234"

  bool is_anybody() const { return shown == Shown::kNot; }
  // The person; empty for a worker, and where nobody is asked.
  std::string User() const;
  // "submitter alice at ipv4:10.0.0.7:51234".
  std::string ToString() const;
};

May MayCall(const CallRule& rule, const Caller& caller);

// PERMISSION_DENIED, with who may.
absl::Status CheckCall(const CallRule& rule, const Caller& caller);
// The same of a call about the job that `owner` submitted; empty: nobody is known to have.
absl::Status CheckJobCall(const CallRule& rule, const Caller& caller, std::string_view job,
                          std::string_view owner);
// The same of a call about a worker.
absl::Status CheckNodeCall(const CallRule& rule, const Caller& caller, std::string_view node);

}  // namespace terrace
