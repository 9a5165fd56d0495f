// SPDX-License-Identifier: Apache-2.0
#include "worker/confine/rank_user.h"

#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/strings.h"

namespace terrace {
namespace {

constexpr size_t kEntryBytes = 64 << 10;  // of one line of the user database
constexpr int kGroupsMax = 65536;         // NGROUPS_MAX

absl::Status Refused(std::string_view text, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("--rank-user: got ", Absl(text), ": ", Absl(why)));
}

std::vector<gid_t> GroupsOf(const RankUser& user) {
  int count = 64;
  std::vector<gid_t> groups(static_cast<size_t>(count));
  while (getgrouplist(user.name.c_str(), user.gid, groups.data(), &count) < 0) {
    if (count <= static_cast<int>(groups.size()) || count > kGroupsMax) return {user.gid};
    groups.resize(static_cast<size_t>(count));
  }
  groups.resize(static_cast<size_t>(count));
  return groups;
}

}  // namespace

absl::StatusOr<RankUser> FindRankUser(std::string_view text) {
  const std::string name(text);
  std::vector<char> buffer(kEntryBytes);
  passwd entry = {};
  passwd* found = nullptr;
  uid_t uid = 0;
  const auto parsed = std::from_chars(name.data(), name.data() + name.size(), uid);
  const bool is_number = parsed.ec == std::errc() && parsed.ptr == name.data() + name.size();
  const int error = is_number
                        ? getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found)
                        : getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found);
  if (found == nullptr) {
    return Refused(text, error != 0 && error != ENOENT
                             ? "the user database does not answer; name the user by its number"
                             : "there is no such user; create it (useradd --system), or name "
                               "another");
  }
  RankUser user = {.name = found->pw_name,
                   .home = found->pw_dir,
                   .uid = found->pw_uid,
                   .gid = found->pw_gid,
                   .groups = {}};
  if (user.uid == 0) return Refused(text, "must be another user than root; name an ordinary one");
  user.groups = GroupsOf(user);
  if (user.gid == 0 || std::find(user.groups.begin(), user.groups.end(), 0) != user.groups.end()) {
    return Refused(text, "it is in the group root; name a user that is not");
  }
  if (geteuid() != 0 && geteuid() != user.uid) {
    return Refused(text, absl::StrCat("only root may start ranks as another user, and this worker "
                                      "runs as user ",
                                      geteuid(), "; start it as root, or leave the option out"));
  }
  return user;
}

uid_t RankFiles::owner() const { return user_.has_value() ? user_->uid : geteuid(); }

absl::Status RankFiles::ShareFolder(const std::string& path) const {
  if (!user_.has_value() || user_->uid == geteuid()) return absl::OkStatus();
  if (lchown(path.c_str(), static_cast<uid_t>(-1), user_->gid) != 0)
    return FileError(errno, "change the group of", path);
  return chmod(path.c_str(), 0750) == 0 ? absl::OkStatus()
                                        : FileError(errno, "change the mode of", path);
}

absl::Status RankFiles::ShareFile(const std::string& path) const {
  const bool is_shared = user_.has_value() && user_->uid != geteuid();
  if (is_shared && lchown(path.c_str(), static_cast<uid_t>(-1), user_->gid) != 0)
    return FileError(errno, "change the group of", path);
  return chmod(path.c_str(), is_shared ? 0640 : 0600) == 0
             ? absl::OkStatus()
             : FileError(errno, "change the mode of", path);
}

absl::Status RankFiles::Give(const std::string& path) const {
  if (!user_.has_value() || user_->uid == geteuid()) return absl::OkStatus();
  return lchown(path.c_str(), user_->uid, user_->gid) == 0
             ? absl::OkStatus()
             : FileError(errno, "change the owner of", path);
}

}  // namespace terrace
