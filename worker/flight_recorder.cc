// SPDX-License-Identifier: Apache-2.0
#include "worker/flight_recorder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace terrace {
namespace {

constexpr char kMagic[8] = {'t', 'r', 'c', 'f', 'l', 'y', '0', '1'};
constexpr char kSharedMemory[] = "/dev/shm";
constexpr size_t kHeaderBytes = 4096;
constexpr int kReadsMax = 16;  // of a state that changes meanwhile

std::string FlightPath(std::string_view run_directory) {
  return absl::StrCat(Absl(run_directory), "/flight");
}

// Plain fields, so that a reader can copy them; the writer goes through std::atomic_ref.
struct Header {
  char magic[8];
  uint32_t streams;
  uint32_t events;
  int64_t pid;
  char program_sha256[64];
  uint64_t run;  // odd while a sequence is being changed
  int32_t sequence;
  int64_t step;
  int64_t reserved_bytes[kFlightTiers];
  int64_t pinned_bytes;
  int64_t external_bytes;
  int64_t prepared_anonymous_bytes;
  alignas(64) uint64_t events_begun;  // slots given out since the start
};
static_assert(sizeof(Header) <= kHeaderBytes);

struct Slot {
  uint64_t stamp;  // number of the event + 1; 0 while it is being written
  FlightEvent event;
  uint64_t unused;
};
static_assert(sizeof(Slot) == 64);

constexpr size_t kCountersAt = kHeaderBytes + kFlightEvents * sizeof(Slot);

size_t BytesFor(size_t streams) { return kCountersAt + streams * sizeof(FlightCounter); }

template <typename T>
std::atomic_ref<T> At(T& field) {
  return std::atomic_ref<T>(field);
}

// A file of zeros. The link in the run directory comes first: what it names can always be found.
absl::StatusOr<UniqueFd> CreateIn(std::string_view run_directory, size_t bytes) {
  const std::string path = FlightPath(run_directory);
  RETURN_IF_ERROR(RemoveAll(path));
  std::string name = absl::StrCat(kSharedMemory, "/terrace-flight-XXXXXX");
  UniqueFd fd(mkostemp(name.data(), O_CLOEXEC));
  if (fd.valid() && symlink(name.c_str(), path.c_str()) == 0 &&
      posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes)) == 0) {
    return fd;
  }
  // No shared memory, or it is full: a file on disk serves as well, only slower now and then.
  if (fd.valid()) unlink(name.c_str());
  unlink(path.c_str());
  ASSIGN_OR_RETURN(fd, [&]() -> absl::StatusOr<UniqueFd> {
    UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!file.valid()) return FileError(errno, "create", path);
    return file;
  }());
  if (const int error = posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes)); error != 0) {
    return FileError(error, "extend", path);
  }
  return fd;
}

// The shared memory that the link in the run directory points to; empty when it is none.
std::string SharedFileOf(const std::string& path) {
  char target[256];
  const ssize_t length = readlink(path.c_str(), target, sizeof target);
  if (length <= 0 || length == static_cast<ssize_t>(sizeof target)) return "";
  const std::string name(target, static_cast<size_t>(length));
  return name.rfind(absl::StrCat(kSharedMemory, "/terrace-flight-"), 0) == 0 ? name : "";
}

std::optional<ProcessBytes> ParseStatm(int fd) {
  char text[128];
  const ssize_t length = pread(fd, text, sizeof text - 1, 0);
  if (length <= 0) return std::nullopt;
  text[length] = '\0';
  long long size = 0, resident = 0, shared = 0;
  if (std::sscanf(text, "%lld %lld %lld", &size, &resident, &shared) != 3) return std::nullopt;
  const int64_t page = sysconf(_SC_PAGE_SIZE);
  return ProcessBytes{.resident = resident * page, .anonymous = (resident - shared) * page};
}

}  // namespace

// The mapping: header, ring, counters.
struct FlightLayout {
  Header header;
  alignas(kHeaderBytes) Slot ring[kFlightEvents];

  FlightCounter* counters() {
    return reinterpret_cast<FlightCounter*>(reinterpret_cast<std::byte*>(this) + kCountersAt);
  }
};
static_assert(sizeof(FlightLayout) == kCountersAt);

absl::StatusOr<std::unique_ptr<FlightWriter>> FlightWriter::Create(std::string_view run_directory,
                                                                   std::string_view program_sha256,
                                                                   size_t streams,
                                                                   const Clock* clock) {
  if (streams > kFlightStreamsMax) {
    return absl::InvalidArgumentError(absl::StrCat("the program has ", streams,
                                                   " streams, a rank can follow ",
                                                   kFlightStreamsMax, " of them"));
  }
  const size_t bytes = BytesFor(streams);
  UniqueFd fd;
  if (!run_directory.empty()) {
    ASSIGN_OR_RETURN(fd, CreateIn(run_directory, bytes));
  }
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      fd.valid() ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd.get(), 0);
  if (memory == MAP_FAILED) return absl::ErrnoToStatus(errno, "cannot map the flight recorder");
  auto* layout = static_cast<FlightLayout*>(memory);
  Header& header = layout->header;
  header.streams = static_cast<uint32_t>(streams);
  header.events = kFlightEvents;
  header.pid = getpid();
  std::memcpy(header.program_sha256, program_sha256.data(),
              std::min(program_sha256.size(), sizeof header.program_sha256));
  header.sequence = kFlightNoSequence;
  for (size_t i = 0; i < streams; ++i) new (layout->counters() + i) FlightCounter;
  // Last: a file without it is not a recorder yet.
  std::atomic_thread_fence(std::memory_order_release);
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  return std::unique_ptr<FlightWriter>(
      new FlightWriter(std::string(run_directory), layout, bytes, clock));
}

FlightWriter::FlightWriter(std::string run_directory, FlightLayout* layout, size_t mapped_bytes,
                           const Clock* clock)
    : run_directory_(std::move(run_directory)),
      layout_(layout),
      mapped_bytes_(mapped_bytes),
      clock_(clock),
      statm_(open("/proc/self/statm", O_RDONLY | O_CLOEXEC)) {}

FlightWriter::~FlightWriter() {
  End();
  munmap(layout_, mapped_bytes_);
  if (!run_directory_.empty()) SettleFlight(run_directory_).IgnoreError();  // the daemon tries too
}

std::span<FlightCounter> FlightWriter::progress() {
  return {layout_->counters(), layout_->header.streams};
}

void FlightWriter::Begin(int32_t sequence) {
  Header& header = layout_->header;
  At(header.run).fetch_add(1, std::memory_order_acq_rel);
  for (FlightCounter& counter : progress()) counter.finished.store(0, std::memory_order_relaxed);
  At(header.sequence).store(sequence, std::memory_order_relaxed);
  At(header.run).fetch_add(1, std::memory_order_acq_rel);
}

void FlightWriter::End() {
  Header& header = layout_->header;
  At(header.run).fetch_add(1, std::memory_order_acq_rel);
  At(header.sequence).store(kFlightNoSequence, std::memory_order_relaxed);
  At(header.run).fetch_add(1, std::memory_order_acq_rel);
}

void FlightWriter::SetStep(int64_t step) {
  At(layout_->header.step).store(step, std::memory_order_relaxed);
}

void FlightWriter::StepDone() {
  const int64_t now_ms = clock_->UnixMillis();
  if (now_ms - sampled_ms_.load(std::memory_order_relaxed) < kFlightSampleMs) return;
  sampled_ms_.store(now_ms, std::memory_order_relaxed);
  Record(FlightEventKind::kStep, v1::TIER_UNSPECIFIED, 0);
}

void FlightWriter::Reserved(v1::Tier tier, int64_t bytes) {
  const auto index = static_cast<size_t>(tier);
  if (index >= kFlightTiers) return;
  At(layout_->header.reserved_bytes[index]).fetch_add(bytes, std::memory_order_relaxed);
  Record(FlightEventKind::kReserve, tier, bytes);
}

void FlightWriter::SetPinned(int64_t bytes) {
  At(layout_->header.pinned_bytes).store(bytes, std::memory_order_relaxed);
}

void FlightWriter::Prepared(int64_t external_bytes) {
  At(layout_->header.external_bytes).store(external_bytes, std::memory_order_relaxed);
  const FlightEvent event =
      Sampled(FlightEventKind::kPrepared, v1::TIER_UNSPECIFIED, external_bytes);
  At(layout_->header.prepared_anonymous_bytes)
      .store(event.anonymous_bytes, std::memory_order_relaxed);
  Add(event);
}

void FlightWriter::Record(FlightEventKind kind, v1::Tier tier, int64_t bytes) {
  Add(Sampled(kind, tier, bytes));
}

FlightEvent FlightWriter::Sampled(FlightEventKind kind, v1::Tier tier, int64_t bytes) const {
  FlightEvent event{.unix_ms = clock_->UnixMillis(),
                    .kind = kind,
                    .tier = static_cast<uint32_t>(tier),
                    .step = At(layout_->header.step).load(std::memory_order_relaxed),
                    .bytes = bytes};
  if (const auto sample = ParseStatm(statm_.get()); sample.has_value()) {
    event.resident_bytes = sample->resident;
    event.anonymous_bytes = sample->anonymous;
  }
  return event;
}

void FlightWriter::Add(const FlightEvent& event) {
  const uint64_t number = At(layout_->header.events_begun).fetch_add(1, std::memory_order_acq_rel);
  Slot& slot = layout_->ring[number % kFlightEvents];
  At(slot.stamp).store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  slot.event = event;
  At(slot.stamp).store(number + 1, std::memory_order_release);
}

namespace {

absl::Status ReadAt(const UniqueFd& fd, size_t offset, void* to, size_t bytes) {
  const ssize_t got = pread(fd.get(), to, bytes, static_cast<off_t>(offset));
  if (got == static_cast<ssize_t>(bytes)) return absl::OkStatus();
  return absl::DataLossError("the flight recorder is shorter than it says");
}

absl::StatusOr<Header> ReadHeader(const UniqueFd& fd) {
  Header header;
  RETURN_IF_ERROR(ReadAt(fd, 0, &header, sizeof header));
  return header;
}

}  // namespace

absl::StatusOr<FlightReader> FlightReader::Open(std::string_view run_directory) {
  return OpenFile(FlightPath(run_directory));
}

absl::StatusOr<FlightReader> FlightReader::OpenFile(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return FileError(errno, "open", path);
  const absl::StatusOr<Header> header = ReadHeader(fd);
  struct stat info;
  const bool whole = header.ok() && std::memcmp(header->magic, kMagic, sizeof kMagic) == 0 &&
                     header->events == kFlightEvents && header->streams <= kFlightStreamsMax &&
                     fstat(fd.get(), &info) == 0 &&
                     info.st_size >= static_cast<off_t>(BytesFor(header->streams));
  if (!whole) return absl::DataLossError(absl::StrCat(path, " is not a whole flight recorder"));
  return FlightReader(std::move(fd), header->streams);
}

absl::StatusOr<FlightState> FlightReader::State() const {
  std::vector<std::byte> counters(streams_ * sizeof(FlightCounter));
  for (int i = 0; i < kReadsMax; ++i) {
    ASSIGN_OR_RETURN(const Header before, ReadHeader(fd_));
    RETURN_IF_ERROR(ReadAt(fd_, kCountersAt, counters.data(), counters.size()));
    ASSIGN_OR_RETURN(const Header after, ReadHeader(fd_));
    if (before.run != after.run || before.run % 2 != 0) continue;
    FlightState state;
    state.program_sha256.assign(after.program_sha256, sizeof after.program_sha256);
    state.program_sha256.resize(std::strlen(state.program_sha256.c_str()));
    state.pid = after.pid;
    state.step = after.step;
    state.sequence = after.sequence;
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
  std::vector<Slot> slots(kFlightEvents);
  RETURN_IF_ERROR(ReadAt(fd_, kHeaderBytes, slots.data(), slots.size() * sizeof(Slot)));
  // Whatever was given out by now may have been written over what was read.
  ASSIGN_OR_RETURN(const Header header, ReadHeader(fd_));
  std::sort(slots.begin(), slots.end(),
            [](const Slot& a, const Slot& b) { return a.stamp < b.stamp; });
  std::vector<FlightEvent> events;
  for (const Slot& slot : slots) {
    if (slot.stamp != 0 && slot.stamp - 1 + kFlightEvents >= header.events_begun)
      events.push_back(slot.event);
  }
  return events;
}

absl::StatusOr<int64_t> FlightReader::Pid() const {
  ASSIGN_OR_RETURN(const Header header, ReadHeader(fd_));
  return header.pid;
}

absl::Status SettleFlight(std::string_view run_directory) {
  const std::string path = FlightPath(run_directory);
  const std::string shared = SharedFileOf(path);
  if (shared.empty()) return absl::OkStatus();
  const int64_t limit = static_cast<int64_t>(BytesFor(kFlightStreamsMax));
  const absl::StatusOr<std::string> bytes = ReadTextFile(shared, limit);
  if (bytes.ok()) {
    RETURN_IF_ERROR(WriteSyncedFile(path + ".new", *bytes));
    RETURN_IF_ERROR(Rename(path + ".new", path));
  }
  unlink(shared.c_str());
  return bytes.status();
}

absl::StatusOr<ProcessBytes> ReadProcessBytes(int64_t pid) {
  const std::string path = pid == 0 ? "/proc/self/statm" : absl::StrCat("/proc/", pid, "/statm");
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const auto bytes = fd.valid() ? ParseStatm(fd.get()) : std::nullopt;
  if (!bytes.has_value()) {
    return absl::UnavailableError(absl::StrCat("there is no process ", pid));
  }
  return *bytes;
}

}  // namespace terrace
