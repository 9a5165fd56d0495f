// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/host_share.h"

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace terrace {
namespace {

constexpr int64_t kFileBytesMax = 256;
constexpr int64_t kLockTimeoutMs = 5'000;  // others hold it for as long as two lines take

// What the file says: one line of three numbers.
struct Share {
  int64_t available_bytes = kNoLimit;
  int64_t group_free_bytes = kNoLimit;
  int64_t taken_bytes = 0;
};

absl::StatusOr<Share> Parse(const std::string& text, std::string_view path) {
  const std::vector<std::string> words =
      absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  Share share;
  if (words.size() == 3 && absl::SimpleAtoi(words[0], &share.available_bytes) &&
      absl::SimpleAtoi(words[1], &share.group_free_bytes) &&
      absl::SimpleAtoi(words[2], &share.taken_bytes)) {
    return share;
  }
  return absl::FailedPreconditionError(
      absl::StrCat(Absl(path), " does not say what memory the ranks of this node share"));
}

int64_t Left(int64_t free_bytes, int64_t taken_bytes) {
  return free_bytes == kNoLimit ? kNoLimit : std::max<int64_t>(0, free_bytes - taken_bytes);
}

}  // namespace

absl::StatusOr<HostLimits> TakeHostShare(std::string_view path, int64_t bytes,
                                         const HostLimits& limits) {
  ASSIGN_OR_RETURN(const UniqueFd lock,
                   LockFile(absl::StrCat(Absl(path), ".lock"), kLockTimeoutMs));
  Share share = {.available_bytes = limits.available_bytes,
                 .group_free_bytes = limits.group.free_bytes};
  const auto text = ReadTextFile(path, kFileBytesMax);
  if (text.ok() && !text->empty()) {  // empty: made for the ranks, and none was here yet
    ASSIGN_OR_RETURN(share, Parse(*text, path));
  } else if (!text.ok() && !absl::IsNotFound(text.status())) {
    return text.status();
  }
  HostLimits left = limits;
  left.taken_bytes = share.taken_bytes;
  left.available_bytes = Left(share.available_bytes, share.taken_bytes);
  left.group.free_bytes = Left(share.group_free_bytes, share.taken_bytes);
  const std::string line = absl::StrCat(share.available_bytes, " ", share.group_free_bytes, " ",
                                        share.taken_bytes + bytes, "\n");
  ASSIGN_OR_RETURN(const UniqueFd file, CreateFile(path));
  RETURN_IF_ERROR(WriteAll(file, std::as_bytes(std::span(line)), path));
  return left;
}

}  // namespace terrace
