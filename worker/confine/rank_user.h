// The unprivileged user that ranks run as where the worker runs as root, and the files that the two
// share: folders that a rank only passes through stay the worker's, so that no rank can put a link
// in the worker's way; its run directory is its own.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace {

struct RankUser {
  std::string name;
  std::string home;
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // all of them: those of a GPU's device files may be among them
};

// `text`: the name or the number of a user. INVALID_ARGUMENT: there is none, it is root, or this
// process may not become it.
absl::StatusOr<RankUser> FindRankUser(std::string_view text);

// Who may use files of the worker that its ranks need. Without a user ranks run as the worker does,
// and only the modes are set.
class RankFiles {
 public:
  explicit RankFiles(std::optional<RankUser> user = std::nullopt) : user_(std::move(user)) {}

  const std::optional<RankUser>& user() const { return user_; }
  // As whom files of ranks are owned.
  uid_t owner() const;

  // Ranks may go through it and list it.
  absl::Status ShareFolder(const std::string& path) const;
  // Ranks may read it, others than ranks and the worker may not.
  absl::Status ShareFile(const std::string& path) const;
  // It becomes the rank's.
  absl::Status Give(const std::string& path) const;

 private:
  std::optional<RankUser> user_;
};

}  // namespace terrace
