// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "client/run_log/run_log.h"
#include "client/run_log/scalars.h"

namespace terrace {
namespace {

// The longest line that we write is shorter.
constexpr int64_t kTailBytes = 4096;

std::string Header() {
  std::string header = "unix_ms,step";
  for (const std::string_view name : ScalarNames()) absl::StrAppend(&header, ",", Absl(name));
  return header + "\n";
}

std::string Line(int64_t unix_ms, const Point& point) {
  std::string line = absl::StrCat(unix_ms, ",", point.step);
  for (const std::string_view name : ScalarNames()) {
    line += ',';
    for (const Scalar& scalar : point.scalars) {
      if (scalar.name == name && std::isfinite(scalar.value)) {
        absl::StrAppendFormat(&line, "%.9g", scalar.value);
      } else if (scalar.name == name) {
        line += std::isnan(scalar.value) ? "nan" : scalar.value > 0 ? "inf" : "-inf";
      }
    }
  }
  return line + "\n";
}

class CsvLog final : public RunLog {
 public:
  CsvLog(std::string path, UniqueFd file, int64_t written_unix_ms)
      : path_(std::move(path)), file_(std::move(file)), written_unix_ms_(written_unix_ms) {}

  absl::Status Add(const v1::JobEvent& event) override {
    const Point point = PointOf(event);
    if (point.scalars.empty() || event.unix_ms() <= written_unix_ms_) return absl::OkStatus();
    return Write(Line(event.unix_ms(), point));
  }
  absl::Status Finish(const v1::Job&) override { return SyncFile(file_, path_); }

  absl::Status Write(const std::string& text) {
    return WriteAll(file_, std::as_bytes(std::span(text)), path_);
  }

 private:
  const std::string path_;
  const UniqueFd file_;
  const int64_t written_unix_ms_;  // of the newest row when it was opened
};

// When the last whole row of a table of ours was told; a row that a crash cut off is cut away.
absl::StatusOr<int64_t> LastRow(const std::string& path, const UniqueFd& file) {
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path));
  std::string head(Header().size(), '\0');
  const ssize_t got = pread(file.get(), head.data(), head.size(), 0);
  if (got != static_cast<ssize_t>(head.size()) || head != Header()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " exists and is no table of a run: its first line must be ", Header(),
                     "name another file, or move this one away"));
  }
  const int64_t from = std::max<int64_t>(0, bytes - kTailBytes);
  std::string tail(static_cast<size_t>(bytes - from), '\0');
  if (pread(file.get(), tail.data(), tail.size(), from) != static_cast<ssize_t>(tail.size())) {
    return FileError(errno, "read", path);
  }
  const size_t end = tail.rfind('\n');
  tail.resize(end + 1);
  if (ftruncate(file.get(), from + static_cast<int64_t>(tail.size())) != 0) {
    return FileError(errno, "cut the last line off", path);
  }
  const size_t begin = end == 0 ? std::string::npos : tail.rfind('\n', end - 1);
  return std::atoll(tail.c_str() + (begin == std::string::npos ? 0 : begin + 1));  // 0: the header
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunLog>> OpenCsv(const std::string& path) {
  RETURN_IF_ERROR(CheckIsFileOrFolder(path));
  UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644));
  if (!file.valid()) return FileError(errno, "write", path);
  std::error_code ignored;
  int64_t written_unix_ms = 0;
  const bool is_new = std::filesystem::file_size(path, ignored) == 0;
  if (!is_new) {
    ASSIGN_OR_RETURN(written_unix_ms, LastRow(path, file));
  }
  auto log = std::make_unique<CsvLog>(path, std::move(file), written_unix_ms);
  if (is_new) RETURN_IF_ERROR(log->Write(Header()));
  return log;
}

}  // namespace terrace
