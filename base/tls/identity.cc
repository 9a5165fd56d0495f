// SPDX-License-Identifier: Apache-2.0
#include "base/tls/identity.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/name.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace terrace {
namespace {

constexpr std::string_view kScheme = "terrace://";
constexpr size_t kShownBytesMax = 160;

constexpr std::array<std::string_view, kRoles> kRoleNames = {"worker", "viewer", "submitter",
                                                             "operator"};

}  // namespace

std::string_view RoleName(Role role) { return kRoleNames[static_cast<size_t>(role)]; }

std::optional<Role> RoleNamed(std::string_view name) {
  const auto found = std::find(kRoleNames.begin(), kRoleNames.end(), name);
  if (found == kRoleNames.end()) return std::nullopt;
  return static_cast<Role>(found - kRoleNames.begin());
}

std::optional<Grant> Identity::Person() const {
  std::optional<Grant> most;
  for (const Grant& grant : grants) {
    if (grant.role != Role::kWorker && (!most || grant.role > most->role)) most = grant;
  }
  return most;
}

bool Identity::IsWorker(std::string_view name) const {
  return std::any_of(grants.begin(), grants.end(), [name](const Grant& grant) {
    return grant.role == Role::kWorker && (grant.name == name || grant.name == kAnyName);
  });
}

bool Identity::IsWorkerOfAnyName() const {
  return std::any_of(grants.begin(), grants.end(),
                     [](const Grant& grant) { return grant.role == Role::kWorker; });
}

std::string Identity::ToString() const {
  return absl::StrJoin(grants, " and ", [](std::string* out, const Grant& grant) {
    const bool any = grant.name == kAnyName;
    absl::StrAppend(out, Absl(RoleName(grant.role)), any ? " of any name" : " ",
                    any ? "" : grant.name);
  });
}

std::string UriOf(const Grant& grant) {
  return absl::StrCat(Absl(kScheme), Absl(RoleName(grant.role)), "/", grant.name);
}

absl::StatusOr<std::optional<Grant>> ParseGrant(std::string_view uri) {
  if (!uri.starts_with(kScheme)) return std::nullopt;
  const std::string_view rest = uri.substr(kScheme.size());
  const size_t slash = rest.find('/');
  const std::optional<Role> role = RoleNamed(rest.substr(0, slash));
  if (slash == std::string_view::npos || !role) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", CleanLine(uri, kShownBytesMax), "\" names no role: it must be ",
                     Absl(kScheme), "ROLE/NAME, with the role ",
                     absl::StrJoin(kRoleNames, ", ", [](std::string* out, std::string_view name) {
                       absl::StrAppend(out, Absl(name));
                     })));
  }
  Grant grant{.role = *role, .name = std::string(rest.substr(slash + 1))};
  RETURN_IF_ERROR(CheckGrant(grant));
  return grant;
}

absl::Status CheckGrant(const Grant& grant) {
  if (grant.role == Role::kWorker && grant.name == kAnyName) return absl::OkStatus();
  return CheckName(absl::StrCat("the name of ", grant.role == Role::kOperator ? "an " : "a ",
                                Absl(RoleName(grant.role))),
                   grant.name);
}

}  // namespace terrace
