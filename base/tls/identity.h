// Who a certificate or token says that its holder is: a role and a name, written as a URI in the
// certificate's subject alternative names: terrace://worker/node-1.
//
// Pure. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace {

// In the order of what people may do: each may what those before it may. A worker is no person.
enum class Role { kWorker, kViewer, kSubmitter, kOperator };
inline constexpr size_t kRoles = 4;
std::string_view RoleName(Role role);  // "submitter"
std::optional<Role> RoleNamed(std::string_view name);

// Of a worker's certificate that several workers share: any name.
inline constexpr std::string_view kAnyName = "*";

struct Grant {
  Role role = Role::kViewer;
  std::string name;

  bool operator==(const Grant&) const = default;
};

// What one certificate or token grants.
struct Identity {
  std::vector<Grant> grants;  // in the order of the certificate

  // The person's grant that allows most; none of a worker.
  std::optional<Grant> Person() const;
  // Whether it is the worker `name`.
  bool IsWorker(std::string_view name) const;
  bool IsWorkerOfAnyName() const;
  // "submitter alice", "worker node-1 and operator slurm", for people.
  std::string ToString() const;
};

// "terrace://submitter/alice".
std::string UriOf(const Grant& grant);
// nullopt of a URI that is none of ours. INVALID_ARGUMENT of one that begins as ours do.
absl::StatusOr<std::optional<Grant>> ParseGrant(std::string_view uri);

// CheckName() of base/name.h, or "*" of a worker.
absl::Status CheckGrant(const Grant& grant);

}  // namespace terrace
