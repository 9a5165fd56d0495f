// SPDX-License-Identifier: Apache-2.0
#include "base/paths/beneath.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/strings.h"
#include "base/unique_fd.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr int kTriesMax = 16;  // while somebody renames folders of the path

// Returns the part of `path` that follows `root`, as it was written, and "." for the root itself.
std::optional<fs::path> Below(const fs::path& path, const fs::path& root) {
  auto at = path.begin();
  for (const fs::path& part : root) {
    if (part.empty()) continue;  // behind a slash at its end
    if (at == path.end() || *at != part) return std::nullopt;
    ++at;
  }
  fs::path rest;
  for (; at != path.end(); ++at) rest /= *at;
  return rest.empty() ? fs::path(".") : rest;
}

absl::Status LeadsOut(const std::string& root) {
  return absl::PermissionDeniedError(
      absl::StrCat("leads out of ", root, " by a symbolic link or by \"..\""));
}

absl::Status CheckKind(mode_t mode) {
  if (S_ISREG(mode) || S_ISDIR(mode)) return absl::OkStatus();
  return absl::InvalidArgumentError(S_ISFIFO(mode)   ? "is a FIFO, no file or folder"
                                    : S_ISSOCK(mode) ? "is a socket, no file or folder"
                                                     : "is a device, no file or folder");
}

UniqueFd OpenBeneath(const UniqueFd& folder, const fs::path& rest) {
  open_how how = {};
  how.flags = O_PATH | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  long fd = -1;
  for (int i = 0; i < kTriesMax && fd < 0; ++i) {
    fd = ::syscall(SYS_openat2, folder.get(), rest.c_str(), &how, sizeof how);
    if (fd < 0 && errno != EAGAIN && errno != EINTR) break;
  }
  return UniqueFd(static_cast<int>(fd));
}

// Nullopt where the kernel does not do it.
std::optional<absl::Status> Resolve(const std::string& root, fs::path rest) {
  const UniqueFd folder(::open(root.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid()) return FileError(errno, "open", root);
  for (;; rest = rest.has_parent_path() ? rest.parent_path() : fs::path(".")) {
    const UniqueFd found = OpenBeneath(folder, rest);
    struct stat info = {};
    if (found.valid() && ::fstat(found.get(), &info) == 0) return CheckKind(info.st_mode);
    if (errno == ENOSYS || errno == EPERM) return std::nullopt;
    if (errno == EXDEV || errno == ELOOP) return LeadsOut(root);
    if (errno != ENOENT || rest == ".") return FileError(errno, "resolve", (root / rest).string());
    if (rest.filename() == "..") return LeadsOut(root);  // of a folder that is not there
  }
}

absl::Status ResolveByName(const std::string& root, const fs::path& rest) {
  std::error_code error;
  const fs::path real_root = fs::canonical(root, error);
  if (error) return FileError(error.value(), "open", root);
  const fs::path real = fs::weakly_canonical(real_root / rest, error);
  if (error) return FileError(error.value(), "resolve", (root / rest).string());
  if (!Below(real, real_root).has_value()) return LeadsOut(root);
  struct stat info = {};
  if (::stat(real.c_str(), &info) == 0) return CheckKind(info.st_mode);
  fs::path there = real;  // as far as there is something
  for (; ::stat(there.c_str(), &info) != 0; there = there.parent_path()) {
    // A link to nothing, where something may appear.
    if (::lstat(there.c_str(), &info) == 0) return LeadsOut(root);
  }
  return S_ISDIR(info.st_mode) ? absl::OkStatus() : FileError(ENOTDIR, "resolve", there.string());
}

// The first root that will do; else what the last one that could have done says.
template <typename Check>
absl::Status CheckEach(std::string_view path, std::span<const std::string> roots, Check check) {
  absl::Status status =
      absl::PermissionDeniedError(absl::StrCat("lies below none of ", absl::StrJoin(roots, ", ")));
  for (const std::string& root : roots) {
    const std::optional<fs::path> rest = Below(fs::path(path), fs::path(root));
    if (!rest.has_value()) continue;
    status = check(root, *rest);
    if (status.ok()) return status;
  }
  return status;
}

}  // namespace

absl::Status CheckBeneath(std::string_view path, std::span<const std::string> roots) {
  return CheckEach(path, roots, [](const std::string& root, const fs::path& rest) {
    const std::optional<absl::Status> status = Resolve(root, rest);
    return status.has_value() ? *status : ResolveByName(root, rest);
  });
}

absl::Status CheckBeneathByName(std::string_view path, std::span<const std::string> roots) {
  return CheckEach(path, roots, ResolveByName);
}

}  // namespace terrace
