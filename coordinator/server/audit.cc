// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/audit.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace terrace {
namespace {

constexpr size_t kTextBytesMax = 1024;  // of each value: they come from outside

const char* ShownName(Caller::Shown shown) {
  switch (shown) {
    case Caller::Shown::kCertificate:
      return "certificate";
    case Caller::Shown::kToken:
      return "token";
    default:
      return "none";
  }
}

}  // namespace

std::string AuditLine(const AuditRecord& record, int64_t unix_ms) {
  nlohmann::ordered_json line;
  line["time"] =
      absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromUnixMillis(unix_ms), absl::UTCTimeZone());
  line["call"] = record.call;
  if (!record.job.empty()) line["job"] = CleanLine(record.job, kTextBytesMax);
  if (!record.node.empty()) line["node"] = CleanLine(record.node, kTextBytesMax);
  for (const auto& [name, value] : record.arguments)
    line["arguments"][name] = CleanLine(value, kTextBytesMax);
  for (const Grant& grant : record.caller.identity.grants) {
    line["by"].push_back({{"role", RoleName(grant.role)}, {"name", grant.name}});
  }
  line["shown"] = ShownName(record.caller.shown);
  line["peer"] = record.caller.peer;
  line["status"] = absl::StatusCodeToString(record.status.code());
  if (!record.status.ok()) line["message"] = CleanLine(Std(record.status.message()), kTextBytesMax);
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::Open(Options options) {
  std::unique_ptr<AuditLog> log(new AuditLog(std::move(options)));
  RETURN_IF_ERROR(log->Reopen());
  return log;
}

absl::Status AuditLog::Reopen() {
  absl::MutexLock lock(&mutex_);
  return OpenFile();
}

absl::Status AuditLog::OpenFile() {
  UniqueFd fd(
      open(options_.path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600));
  if (!fd.valid()) return FileError(errno, "open the audit log", options_.path);
  struct stat status {};
  if (fstat(fd.get(), &status) != 0) return FileError(errno, "look at", options_.path);
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--audit-log: ", options_.path, " is no regular file; name one, or none"));
  }
  fd_ = std::move(fd);
  bytes_ = status.st_size;
  return absl::OkStatus();
}

absl::Status AuditLog::Rotate() {
  const auto name = [this](int i) { return absl::StrCat(options_.path, ".", i); };
  for (int i = options_.files_kept - 1; i >= 1; --i) {
    if (std::rename(name(i).c_str(), name(i + 1).c_str()) != 0 && errno != ENOENT)
      return FileError(errno, "rename", name(i));
  }
  RETURN_IF_ERROR(Rename(options_.path, name(1)));
  return OpenFile();
}

void AuditLog::Write(const AuditRecord& record) {
  const std::string line = AuditLine(record, SystemClock().UnixMillis());
  const auto bytes = static_cast<int64_t>(line.size());
  absl::MutexLock lock(&mutex_);
  if (bytes_ > 0 && bytes_ + bytes > options_.bytes_max) {
    if (const absl::Status rotated = Rotate(); !rotated.ok())
      log::Error("the audit log grows beyond its limit: ", rotated.message());
  }
  const absl::Status written = WriteAll(fd_, std::as_bytes(std::span(line)), options_.path);
  bytes_ += bytes;
  if (!written.ok()) log::Error("not in the audit log (", written.message(), "): ", line);
}

}  // namespace terrace
