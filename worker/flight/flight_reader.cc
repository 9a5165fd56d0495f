// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/paths/new_file.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "worker/flight/flight_layout.h"
#include "worker/flight/flight_recorder.h"

// The side of whoever watches.
namespace terrace {
namespace {

constexpr int kReadsMax = 16;  // of a state that changes meanwhile

absl::Status ReadAt(const UniqueFd& fd, size_t offset, void* to, size_t bytes) {
  const ssize_t got = pread(fd.get(), to, bytes, static_cast<off_t>(offset));
  if (got == static_cast<ssize_t>(bytes)) return absl::OkStatus();
  return absl::DataLossError("the flight recorder is shorter than it says");
}

absl::StatusOr<FlightHeader> ReadHeader(const UniqueFd& fd) {
  FlightHeader header;
  RETURN_IF_ERROR(ReadAt(fd, 0, &header, sizeof header));
  return header;
}

// The shared memory that the link in the run directory points to; empty when it is none.
std::string SharedFileOf(const std::string& path) {
  char target[256];
  const ssize_t length = readlink(path.c_str(), target, sizeof target);
  if (length <= 0 || length == static_cast<ssize_t>(sizeof target)) return "";
  const std::string name(target, static_cast<size_t>(length));
  const std::string begin = absl::StrCat(kFlightSharedMemory, "/terrace-flight-");
  const bool is_ours = name.rfind(begin, 0) == 0 && name.find('/', begin.size()) == name.npos;
  return is_ours ? name : "";
}

// No link but that one is followed: a rank may have put it there, and its daemon may do more than
// the rank.
UniqueFd OpenFlight(const std::string& path, int flags) {
  const std::string shared = SharedFileOf(path);
  const std::string& file = shared.empty() ? path : shared;
  return UniqueFd(open(file.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
}

absl::StatusOr<std::string> ReadFlight(const std::string& path) {
  const UniqueFd fd = OpenFlight(path, O_RDONLY);
  struct stat info;
  if (!fd.valid() || fstat(fd.get(), &info) != 0) return FileError(errno, "read", path);
  const auto limit = static_cast<off_t>(FlightBytes(kFlightStreamsMax, kFlightSteps));
  if (info.st_size > limit) return absl::DataLossError(absl::StrCat(path, " is too large"));
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  RETURN_IF_ERROR(ReadAt(fd, 0, bytes.data(), bytes.size()));
  return bytes;
}

}  // namespace

std::string FlightPath(std::string_view run_directory) {
  return absl::StrCat(Absl(run_directory), "/flight");
}

absl::StatusOr<FlightReader> FlightReader::Open(std::string_view run_directory) {
  return OpenFile(FlightPath(run_directory));
}

absl::StatusOr<FlightReader> FlightReader::OpenFile(const std::string& path) {
  UniqueFd fd = OpenFlight(path, O_RDONLY);
  if (!fd.valid()) return FileError(errno, "open", path);
  const absl::StatusOr<FlightHeader> header = ReadHeader(fd);
  struct stat info;
  const bool whole =
      header.ok() && std::memcmp(header->magic, kFlightMagic, sizeof kFlightMagic) == 0 &&
      header->events == kFlightEvents && header->streams <= kFlightStreamsMax &&
      header->steps >= 0 && header->steps <= int64_t{kFlightSteps} && fstat(fd.get(), &info) == 0 &&
      info.st_size >=
          static_cast<off_t>(FlightBytes(header->streams, static_cast<size_t>(header->steps)));
  if (!whole) return absl::DataLossError(absl::StrCat(path, " is not a whole flight recorder"));
  return FlightReader(std::move(fd), header->streams);
}

absl::StatusOr<FlightState> FlightReader::State() const {
  std::vector<std::byte> counters(streams_ * sizeof(FlightCounter));
  for (int i = 0; i < kReadsMax; ++i) {
    ASSIGN_OR_RETURN(const FlightHeader before, ReadHeader(fd_));
    RETURN_IF_ERROR(ReadAt(fd_, kFlightCountersAt, counters.data(), counters.size()));
    ASSIGN_OR_RETURN(const FlightHeader after, ReadHeader(fd_));
    if (before.run != after.run || before.run % 2 != 0) continue;
    FlightState state;
    state.program_sha256.assign(after.program_sha256, sizeof after.program_sha256);
    state.program_sha256.resize(std::strlen(state.program_sha256.c_str()));
    state.pid = after.pid;
    state.step = after.step;
    state.sequence = after.sequence;
    state.changes = after.run;
    state.activity = static_cast<FlightActivity>(after.activity);
    state.places = after.places;
    std::copy_n(after.reserved_bytes, kFlightTiers, state.reserved_bytes.begin());
    state.pinned_bytes = after.pinned_bytes;
    state.external_bytes = after.external_bytes;
    state.prepared_anonymous_bytes = after.prepared_anonymous_bytes;
    state.finished.resize(streams_);
    for (size_t s = 0; s < streams_; ++s) {
      std::memcpy(&state.finished[s], counters.data() + s * sizeof(FlightCounter), sizeof(int32_t));
    }
    return state;
  }
  return absl::UnavailableError("the rank changes sequences faster than they can be read");
}

absl::StatusOr<std::vector<FlightEvent>> FlightReader::Events() const {
  std::vector<FlightEventSlot> slots(kFlightEvents);
  RETURN_IF_ERROR(
      ReadAt(fd_, kFlightHeaderBytes, slots.data(), slots.size() * sizeof(FlightEventSlot)));
  // Whatever was given out by now may have been written over what was read.
  ASSIGN_OR_RETURN(const FlightHeader header, ReadHeader(fd_));
  std::sort(slots.begin(), slots.end(),
            [](const FlightEventSlot& a, const FlightEventSlot& b) { return a.stamp < b.stamp; });
  std::vector<FlightEvent> events;
  for (const FlightEventSlot& slot : slots) {
    if (slot.stamp != 0 && slot.stamp - 1 + kFlightEvents >= header.events_begun)
      events.push_back(slot.event);
  }
  return events;
}

absl::StatusOr<std::vector<FlightStep>> FlightReader::UntoldSteps() const {
  ASSIGN_OR_RETURN(const FlightHeader header, ReadHeader(fd_));
  std::vector<FlightStepSlot> slots(static_cast<size_t>(header.steps));
  RETURN_IF_ERROR(
      ReadAt(fd_, FlightStepsAt(streams_), slots.data(), slots.size() * sizeof(FlightStepSlot)));
  std::vector<FlightStep> steps;
  for (const FlightStepSlot& slot : slots) {
    if (slot.step <= header.told_step || slot.bytes > sizeof slot.message) continue;
    steps.push_back({.step = slot.step, .message = std::string(slot.message, slot.bytes)});
  }
  std::sort(steps.begin(), steps.end(),
            [](const FlightStep& a, const FlightStep& b) { return a.step < b.step; });
  return steps;
}

absl::StatusOr<int64_t> FlightReader::Pid() const {
  ASSIGN_OR_RETURN(const FlightHeader header, ReadHeader(fd_));
  return header.pid;
}

absl::Status SettleFlight(std::string_view run_directory) {
  const std::string path = FlightPath(run_directory);
  const std::string shared = SharedFileOf(path);
  if (shared.empty()) return absl::OkStatus();
  const absl::StatusOr<std::string> bytes = ReadFlight(path);
  if (bytes.ok()) RETURN_IF_ERROR(ReplaceFile(path, *bytes, 0600));
  unlink(shared.c_str());
  return bytes.status();
}

absl::Status MarkStepsTold(std::string_view run_directory, int64_t step) {
  const std::string path = FlightPath(run_directory);
  const UniqueFd fd = OpenFlight(path, O_WRONLY);
  if (fd.valid() && pwrite(fd.get(), &step, sizeof step, offsetof(FlightHeader, told_step)) ==
                        static_cast<ssize_t>(sizeof step)) {
    return absl::OkStatus();
  }
  return FileError(errno, "write", path);
}

ProcessMemory::ProcessMemory(int64_t pid)
    : statm_(open(pid == 0 ? "/proc/self/statm" : absl::StrCat("/proc/", pid, "/statm").c_str(),
                  O_RDONLY | O_CLOEXEC)) {}

std::optional<ProcessBytes> ProcessMemory::Read() const {
  char text[128];
  const ssize_t length = pread(statm_.get(), text, sizeof text - 1, 0);
  if (length <= 0) return std::nullopt;
  text[length] = '\0';
  long long size = 0, resident = 0, shared = 0;
  if (std::sscanf(text, "%lld %lld %lld", &size, &resident, &shared) != 3) return std::nullopt;
  const int64_t page = sysconf(_SC_PAGE_SIZE);
  return ProcessBytes{.resident = resident * page, .anonymous = (resident - shared) * page};
}

}  // namespace terrace
