// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/progress/process_look.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/unique_fd.h"

namespace terrace {
namespace {

// Such files have no size to go by.
std::string ReadProc(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return "";
  char text[8192];
  const ssize_t length = read(fd.get(), text, sizeof text);
  return length <= 0 ? "" : std::string(text, static_cast<size_t>(length));
}

// The value behind `name` and a colon on a line of its own; 0: there is none.
int64_t NumberIn(const std::string& text, std::string_view name) {
  const size_t at = text.find(absl::StrCat("\n", std::string(name), ":"));
  return at == std::string::npos ? 0 : std::atoll(text.c_str() + at + name.size() + 2);
}

// A thread's name may have brackets and spaces.
struct Stat {
  std::string name;
  char state = '?';
  std::vector<std::string> fields{};  // from the parent's number on
};
Stat ReadStat(const std::string& folder) {
  const std::string text = ReadProc(folder + "/stat");
  const size_t open = text.find('('), close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close + 2 >= text.size())
    return {};
  Stat stat{.name = text.substr(open + 1, close - open - 1), .state = text[close + 2]};
  if (close + 4 < text.size())
    stat.fields = absl::StrSplit(text.substr(close + 4), ' ', absl::SkipEmpty());
  return stat;
}

bool IsFrozen(const std::string& wchan) {
  return absl::StrContains(wchan, "freezer") || absl::StrContains(wchan, "refrigerator");
}

std::string At(const std::string& wchan) {
  return wchan.empty() || wchan == "0" ? "" : absl::StrCat(" (", wchan, ")");
}

}  // namespace

ProcessReader::ProcessReader(int64_t pid, std::string proc)
    : pid_(pid), folder_(absl::StrCat(proc, "/", pid)) {}

ProcessReader::Counters ProcessReader::Read() const {
  constexpr size_t kMajorFaults = 8;  // of the fields behind the state
  Counters counters;
  if (const Stat stat = ReadStat(folder_); stat.fields.size() > kMajorFaults)
    counters.major_faults = std::atoll(stat.fields[kMajorFaults].c_str());
  const std::string io = "\n" + ReadProc(folder_ + "/io");
  counters.io_bytes = NumberIn(io, "rchar") + NumberIn(io, "wchar");
  return counters;
}

std::vector<ProcessReader::Thread> ProcessReader::Threads() const {
  std::vector<Thread> threads;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/task", error)) {
    if (threads.size() == kThreadsLookedAt) break;
    Thread thread{.folder = entry.path().string(), .id = entry.path().filename().string()};
    Stat stat = ReadStat(thread.folder);
    thread.name = std::move(stat.name);
    thread.state = stat.state;
    thread.wchan = ReadProc(thread.folder + "/wchan");
    threads.push_back(std::move(thread));
  }
  std::sort(threads.begin(), threads.end(), [](const Thread& a, const Thread& b) {
    return std::atoll(a.id.c_str()) < std::atoll(b.id.c_str());
  });
  return threads;
}

// ioctl(fd, ...) of a file of the driver's.
bool ProcessReader::IsInDriverCall(const Thread& thread, std::string* device) const {
  long long number = -1;
  unsigned long long fd = 0;
  if (std::sscanf(ReadProc(thread.folder + "/syscall").c_str(), "%lld %llx", &number, &fd) != 2 ||
      number != SYS_ioctl) {
    return false;
  }
  std::error_code error;
  *device = std::filesystem::read_symlink(absl::StrCat(folder_, "/fd/", fd), error).string();
  return absl::StartsWith(*device, "/dev/nvidia");
}

ProcessLook ProcessReader::Look(double faults_per_second) const {
  const std::vector<Thread> threads = Threads();
  if (threads.empty()) return {};
  const auto with = [&threads](auto holds) {
    return std::find_if(threads.begin(), threads.end(), holds);
  };
  if (with([](const Thread& t) { return t.state == 'T'; }) != threads.end())
    return {v1::PROCESS_STOPPED, "is stopped by a signal"};
  if (with([](const Thread& t) { return t.state == 't'; }) != threads.end()) {
    const int64_t tracer = NumberIn(ReadProc(folder_ + "/status"), "TracerPid");
    return {v1::PROCESS_STOPPED, absl::StrCat("is stopped by a debugger (process ", tracer, ")")};
  }
  if (with([](const Thread& t) { return IsFrozen(t.wchan); }) != threads.end())
    return {v1::PROCESS_STOPPED, "is frozen with its control group"};
  std::string device;
  if (with([&](const Thread& t) { return IsInDriverCall(t, &device); }) != threads.end())
    return {v1::PROCESS_IN_DRIVER,
            absl::StrCat("is in a call to the driver of its GPU (", device, ")")};
  if (faults_per_second >= kPagingFaultsPerSecond) {
    return {v1::PROCESS_PAGING,
            absl::StrFormat("reads its pages back from a drive, %.0f a second", faults_per_second)};
  }
  if (const auto found = with([](const Thread& t) { return t.state == 'D'; });
      found != threads.end()) {
    return {v1::PROCESS_IN_IO,
            absl::StrCat("waits for a drive or a file system", At(found->wchan))};
  }
  if (with([](const Thread& t) { return t.state == 'R'; }) != threads.end())
    return {v1::PROCESS_RUNNING, "computes"};
  return {v1::PROCESS_WAITING, absl::StrCat("sleeps", At(threads.front().wchan))};
}

std::string ProcessReader::ThreadsText() const {
  std::string text;
  for (const Thread& thread : Threads()) {
    const std::string call = ReadProc(thread.folder + "/syscall");
    absl::StrAppend(&text, thread.id, "  ", thread.name, "  ", std::string(1, thread.state), "  ",
                    thread.wchan.empty() || thread.wchan == "0" ? "-" : thread.wchan,
                    "  system call ",
                    call.empty() ? "-" : call.substr(0, call.find_first_of(" \n")), "\n");
    for (const auto line : absl::StrSplit(ReadProc(thread.folder + "/stack"), '\n')) {
      if (!absl::StripAsciiWhitespace(line).empty()) absl::StrAppend(&text, "    ", line, "\n");
    }
  }
  return text;
}

}  // namespace terrace
