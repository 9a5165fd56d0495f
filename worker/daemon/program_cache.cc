// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/program_cache.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "proto/program/program_hash.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

bool IsHash(std::string_view text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace

ProgramCache::ProgramCache(std::string_view state)
    : folder_(absl::StrCat(Absl(state), "/programs")) {}

std::string ProgramCache::PathOf(std::string_view sha256) const {
  return absl::StrCat(folder_, "/", Absl(sha256), ".pb");
}

absl::StatusOr<std::string> ProgramCache::Find(std::string_view sha256) const {
  if (!IsHash(sha256)) {
    return absl::InvalidArgumentError(absl::StrCat("\"", Absl(sha256), "\" is no SHA-256"));
  }
  std::error_code error;
  if (fs::exists(PathOf(sha256), error)) return PathOf(sha256);
  return absl::NotFoundError(absl::StrCat("program ", Absl(sha256), " is not here yet"));
}

absl::StatusOr<bool> ProgramCache::Add(const v1::ProgramChunk& chunk) {
  if (!IsHash(chunk.sha256()) || chunk.total_bytes() > kProgramBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("program chunk of \"", chunk.sha256(), "\", ",
                                                   chunk.total_bytes(), " bytes; at most ",
                                                   kProgramBytesMax, " bytes may come"));
  }
  if (chunk.offset() == 0) {
    if (incoming_.size() >= kProgramsReceivedMax) incoming_.clear();  // all will be asked for again
    incoming_[chunk.sha256()].clear();
  }
  auto found = incoming_.find(chunk.sha256());
  if (found == incoming_.end()) return false;  // the rest of one that was dropped
  std::string& bytes = found->second;
  const int64_t have = static_cast<int64_t>(bytes.size());
  if (chunk.offset() != have ||
      have + static_cast<int64_t>(chunk.data().size()) > chunk.total_bytes()) {
    incoming_.erase(found);
    return absl::InvalidArgumentError(absl::StrCat("program ", chunk.sha256(), ": chunk at ",
                                                   chunk.offset(), " after ", have, " bytes"));
  }
  bytes += chunk.data();
  if (static_cast<int64_t>(bytes.size()) < chunk.total_bytes()) return false;
  const std::string whole = std::move(bytes);
  incoming_.erase(found);
  RETURN_IF_ERROR(Store(chunk.sha256(), whole));
  return true;
}

absl::Status ProgramCache::Store(std::string_view sha256, const std::string& bytes) {
  if (const std::string actual = Sha256Hex(bytes); actual != sha256) {
    return absl::InvalidArgumentError(
        absl::StrCat("program ", Absl(sha256), " arrived with the hash ", actual));
  }
  RETURN_IF_ERROR(MakeDirectories(folder_));
  RemoveOldest();
  const std::string part = PathOf(sha256) + ".part";
  const absl::Status written = WriteSyncedFile(part, bytes);
  if (written.ok()) return Rename(part, PathOf(sha256));
  RemoveAll(part).IgnoreError();  // what did fit of it is in the way of others
  return written;
}

// A rank reads its program when it starts; what it no longer needs can be asked for again.
void ProgramCache::RemoveOldest() {
  std::error_code error;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder_, error)) files.push_back(entry.path());
  if (files.size() < kProgramsKept) return;
  std::sort(files.begin(), files.end(), [&](const fs::path& a, const fs::path& b) {
    return fs::last_write_time(a, error) < fs::last_write_time(b, error);
  });
  for (size_t i = 0; i + kProgramsKept <= files.size(); ++i) fs::remove(files[i], error);
}

}  // namespace terrace
