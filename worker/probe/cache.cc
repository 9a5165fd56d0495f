// SPDX-License-Identifier: Apache-2.0
#include "worker/probe/cache.h"

#include <google/protobuf/util/json_util.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

constexpr int64_t kProfileBytesMax = 4 << 20;
constexpr char kDoubt[] = ".doubt";
constexpr int64_t kDoubtBytesMax = 4096;
constexpr int64_t kLockSilenceMs = 200;  // what a process takes that only reads

}  // namespace

std::string ProfileFolder() {
  const auto value = [](const char* name) {
    const char* text = std::getenv(name);
    return std::string(text == nullptr ? "" : text);
  };
  if (const std::string folder = value("TERRACE_PROFILE_DIR"); !folder.empty()) return folder;
  if (const std::string cache = value("XDG_CACHE_HOME"); !cache.empty()) return cache + "/terrace";
  if (const std::string home = value("HOME"); !home.empty()) return home + "/.cache/terrace";
  return "";
}

ProbeCache ProbeCache::Open(const std::string& folder, const std::string& kind,
                            std::string hardware, const ProbeCacheWait& wait) {
  if (folder.empty() || !MakeDirectories(folder).ok()) {
    return {"", std::move(hardware), absl::NotFoundError("nothing is kept")};
  }
  const std::string path = absl::StrCat(folder, "/profile-", kind, ".json");
  absl::StatusOr<UniqueFd> lock = LockFile(path + ".lock", kLockSilenceMs);
  if (absl::IsUnavailable(lock.status())) {
    wait.say("another process measures this hardware now: waiting for its profile");
    lock = LockFile(path + ".lock", absl::ToInt64Milliseconds(wait.limit));
  }
  return {path, std::move(hardware), std::move(lock)};
}

std::optional<v1::HardwareProfile> ProbeCache::Read(std::string* why_not) const {
  if (path_.empty()) return std::nullopt;
  const auto text = ReadTextFile(path_, kProfileBytesMax);
  if (!text.ok()) return std::nullopt;
  v1::HardwareProfile profile;
  if (!google::protobuf::util::JsonStringToMessage(*text, &profile).ok() || !profile.measured()) {
    *why_not = absl::StrCat(path_, " holds no measured profile");
    return std::nullopt;
  }
  if (profile.hardware() != hardware_) {
    *why_not = absl::StrCat(path_, " was measured on other hardware or by another version (",
                            profile.name(), ", ", profile.hardware(), "; this is ", hardware_, ")");
    return std::nullopt;
  }
  return profile;
}

std::string ProbeCache::Doubt() const {
  return path_.empty() ? "" : ReadTextFile(path_ + kDoubt, kDoubtBytesMax).value_or("");
}

absl::Status ProbeCache::SetDoubt(const std::string& doubt) const {
  std::string why_not;
  if (!Read(&why_not)) {
    return absl::NotFoundError(why_not.empty() ? "no profile of this hardware is kept" : why_not);
  }
  return WriteSyncedFile(path_ + kDoubt, doubt.substr(0, kDoubtBytesMax));
}

absl::Status ProbeCache::Write(const v1::HardwareProfile& profile, const std::string& doubt) const {
  if (path_.empty()) return absl::OkStatus();
  google::protobuf::util::JsonPrintOptions print;
  print.preserve_proto_field_names = true;
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(profile, &json, print).ok()) {
    return absl::InternalError("the profile cannot be written as JSON");
  }
  // The doubt first: without it a disturbed profile would be trusted.
  RETURN_IF_ERROR(doubt.empty() ? RemoveAll(path_ + kDoubt)
                                : WriteSyncedFile(path_ + kDoubt, doubt));
  const std::string fresh = path_ + ".new";
  RETURN_IF_ERROR(WriteSyncedFile(fresh, json));
  return Rename(fresh, path_);
}

}  // namespace terrace
