// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/abandoned_flights.h"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <filesystem>
#include <system_error>

#include "worker/flight/flight_recorder.h"

namespace terrace {
namespace {

bool IsAlive(int64_t pid) {
  return pid > 0 && (kill(static_cast<pid_t>(pid), 0) == 0 || errno == EPERM);
}

// Not std::time, whose clock moves in ticks: a file may be newer than that.
int64_t SecondsNow() {
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  return now.tv_sec;
}

bool IsAbandoned(const std::string& path, uid_t owner, int64_t older_than_seconds) {
  struct stat info;
  // The change time is that of its creation: what is written through the mapping leaves it alone.
  if (lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != owner ||
      SecondsNow() - info.st_ctime < older_than_seconds) {
    return false;
  }
  const auto reader = FlightReader::OpenFile(path);
  if (!reader.ok()) return true;  // its rank died while making it
  const auto pid = reader->Pid();
  return pid.ok() && !IsAlive(*pid);
}

}  // namespace

int RemoveAbandonedFlights(const std::string& folder, uid_t owner, int64_t older_than_seconds) {
  int removed = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().filename().string().rfind("terrace-flight-", 0) != 0) continue;
    if (!IsAbandoned(entry.path().string(), owner, older_than_seconds)) continue;
    removed += unlink(entry.path().c_str()) == 0;
  }
  return removed;
}

}  // namespace terrace
