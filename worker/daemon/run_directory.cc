// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/run_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/paths/new_file.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/unique_fd.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kConfigBytesMax = 64 << 20;
constexpr int64_t kLastLineBytesMax = 300;

std::string RunsFolder(std::string_view state) { return absl::StrCat(Absl(state), "/runs"); }
std::string In(std::string_view folder, const char* name) {
  return absl::StrCat(Absl(folder), "/", name);
}

// Made once, by the first of them: the file is the ranks', its folder is not.
absl::Status MakeShared(const std::string& path, const RankFiles& files) {
  const UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  return fd.valid() ? files.Give(path) : FileError(errno, "create", path);
}

std::vector<fs::path> Folders(const fs::path& parent) {
  std::vector<fs::path> folders;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(parent, error)) {
    if (entry.is_directory(error)) folders.push_back(entry.path());
  }
  return folders;
}

std::optional<int64_t> Number(const std::string& text) {
  int64_t number = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec != std::errc() || text.empty()) return std::nullopt;
  return number;
}

void RemoveOldest(std::vector<fs::path> forgotten) {
  std::error_code error;
  std::sort(forgotten.begin(), forgotten.end(), [&](const fs::path& a, const fs::path& b) {
    return fs::last_write_time(a, error) > fs::last_write_time(b, error);
  });
  for (size_t i = kForgottenRunsKept; i < forgotten.size(); ++i) {
    fs::remove_all(forgotten[i], error);
    const fs::path epoch = forgotten[i].parent_path();
    if (Folders(epoch).empty()) fs::remove_all(epoch, error);  // with what its ranks shared
    fs::remove(epoch.parent_path(), error);                    // only when empty
  }
}

std::optional<v1::RankReport> ReadReport(const std::string& path) {
  const auto bytes = ReadTextFile(path, kConfigBytesMax);
  v1::RankReport report;
  if (!bytes.ok() || !report.ParseFromString(*bytes)) return std::nullopt;
  return report;
}

// The file of that rank in the newest epoch of the job that has it.
std::optional<std::string> Newest(std::string_view state, std::string_view job, uint32_t rank,
                                  std::string (*path_in)(std::string_view run_directory)) {
  std::optional<int64_t> newest;
  std::string found;
  if (!IsSafeJobId(job)) return std::nullopt;
  for (const fs::path& epoch : Folders(fs::path(RunsFolder(state)) / job)) {
    const std::optional<int64_t> number = Number(epoch.filename().string());
    const std::string path = path_in((epoch / absl::StrCat(rank)).string());
    if (!number.has_value() || !fs::exists(path) || number <= newest) continue;
    newest = number;
    found = path;
  }
  return newest.has_value() ? std::optional(found) : std::nullopt;
}

}  // namespace

bool IsSafeJobId(std::string_view job) {
  return !job.empty() && job.size() <= 200 && job[0] != '.' &&
         job.find('/') == std::string_view::npos && job.find('\0') == std::string_view::npos;
}

std::string RunDirectory(std::string_view state, const v1::RankConfig& config) {
  return absl::StrCat(RunsFolder(state), "/", config.job(), "/", config.epoch(), "/",
                      config.rank());
}
std::string LogPath(std::string_view run_directory) { return In(run_directory, "rank.log"); }
std::string TracePath(std::string_view run_directory) { return In(run_directory, "trace.json"); }
std::string SocketPath(std::string_view run_directory) { return In(run_directory, "link.sock"); }
std::string ConfigPath(std::string_view run_directory) { return In(run_directory, "config.pb"); }
std::string PidPath(std::string_view run_directory) { return In(run_directory, "pid"); }
std::string VerdictPath(std::string_view run_directory) {
  return In(run_directory, "memory_verdict.txt");
}

std::string RanOutPath(std::string_view run_directory) { return In(run_directory, "ran_out.pb"); }
std::string HangPath(std::string_view run_directory) { return In(run_directory, "hang.txt"); }

absl::Status MakeRunDirectory(std::string_view state, const v1::RankConfig& config,
                              const RankFiles& files) {
  const fs::path folder(config.run_directory());
  const fs::path epoch = folder.parent_path();
  RETURN_IF_ERROR(MakeDirectories(folder.string()));
  for (const fs::path& above : {fs::path(RunsFolder(state)), epoch.parent_path(), epoch})
    RETURN_IF_ERROR(files.ShareFolder(above.string()));
  const std::string path = ConfigPath(config.run_directory());
  RETURN_IF_ERROR(ReplaceFile(path, config.SerializeAsString(), 0600));
  RETURN_IF_ERROR(files.ShareFile(path));
  if (config.local_ranks() > 1) {
    for (const char* name : {"host_memory", "host_memory.lock"})
      RETURN_IF_ERROR(MakeShared((epoch / name).string(), files));
  }
  return files.Give(folder.string());
}

std::optional<v1::RankReport> ReadExitReport(std::string_view run_directory) {
  return ReadReport(In(run_directory, "exit.pb"));
}

std::optional<v1::RankReport> ReadRanOut(std::string_view run_directory) {
  return ReadReport(RanOutPath(run_directory));
}

std::optional<pid_t> FindProcess(std::string_view run_directory) {
  std::ifstream file(PidPath(run_directory));
  int64_t pid = 0;
  if (!(file >> pid) || pid <= 0) return std::nullopt;
  std::ifstream command(absl::StrCat("/proc/", pid, "/cmdline"), std::ios::binary);
  const std::string line((std::istreambuf_iterator<char>(command)),
                         std::istreambuf_iterator<char>());
  if (line.find(run_directory) == std::string::npos) return std::nullopt;
  return static_cast<pid_t>(pid);
}

void MarkForgotten(std::string_view run_directory) {
  ReplaceFile(In(run_directory, "forgotten"), "", 0644).IgnoreError();  // it is looked at again
}

std::string LastLogLine(std::string_view run_directory) {
  const UniqueFd file(open(LogPath(run_directory).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info {};
  if (!file.valid() || fstat(file.get(), &info) != 0) return "";
  std::string text(static_cast<size_t>(std::min<int64_t>(info.st_size, kLastLineBytesMax)), '\0');
  const ssize_t got =
      pread(file.get(), text.data(), text.size(), info.st_size - static_cast<int64_t>(text.size()));
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, got)));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  const size_t start = text.rfind('\n');
  return start == std::string::npos ? text : text.substr(start + 1);
}

std::vector<v1::RankConfig> ScanRuns(std::string_view state) {
  std::vector<v1::RankConfig> runs;
  std::vector<fs::path> forgotten;
  for (const fs::path& job : Folders(RunsFolder(state))) {
    for (const fs::path& epoch : Folders(job)) {
      for (const fs::path& rank : Folders(epoch)) {
        if (fs::exists(rank / "forgotten")) {
          forgotten.push_back(rank);
          continue;
        }
        const auto bytes = ReadTextFile(ConfigPath(rank.string()), kConfigBytesMax);
        v1::RankConfig config;
        if (!bytes.ok() || !config.ParseFromString(*bytes)) {  // died before anything started
          MarkForgotten(rank.string());
          continue;
        }
        config.set_run_directory(rank.string());  // the state folder may have been moved
        runs.push_back(std::move(config));
      }
    }
  }
  RemoveOldest(std::move(forgotten));
  return runs;
}

absl::StatusOr<std::string> FindLog(std::string_view state, std::string_view job, uint32_t rank) {
  const std::optional<std::string> found = Newest(state, job, rank, LogPath);
  if (found.has_value()) return *found;
  return absl::NotFoundError(
      absl::StrCat("there is no log of rank ", rank, " of job ", Absl(job), " on this worker"));
}

std::map<int64_t, std::string> LogsFrom(std::string_view state, std::string_view job, uint32_t rank,
                                        int64_t epoch) {
  std::map<int64_t, std::string> logs;
  if (!IsSafeJobId(job)) return logs;
  for (const fs::path& folder : Folders(fs::path(RunsFolder(state)) / job)) {
    const std::optional<int64_t> number = Number(folder.filename().string());
    const std::string path = LogPath((folder / absl::StrCat(rank)).string());
    if (number.has_value() && *number >= epoch && fs::exists(path)) logs[*number] = path;
  }
  return logs;
}

absl::StatusOr<std::string> FindTrace(std::string_view state, std::string_view job, uint32_t rank) {
  const std::optional<std::string> found = Newest(state, job, rank, TracePath);
  if (found.has_value()) return *found;
  return absl::NotFoundError(absl::StrCat(
      "rank ", rank, " of job ", Absl(job),
      " has written no trace: it does so when train.trace_steps steps of a start have ended, which "
      "is never when that key is 0, as it is where the spec does not say otherwise; what went "
      "wrong "
      "meanwhile is in its log"));
}

}  // namespace terrace
