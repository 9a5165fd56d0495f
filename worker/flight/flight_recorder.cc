// SPDX-License-Identifier: Apache-2.0
#include "worker/flight/flight_recorder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "worker/flight/flight_layout.h"

namespace terrace {
namespace {

template <typename T>
std::atomic_ref<T> At(T& field) {
  return std::atomic_ref<T>(field);
}

// What is stored here is seen no earlier than all that was stored before: a reader that finds any
// of it finds the slot marked, too. Word by word, because ThreadSanitizer knows no fences.
// REQUIRES: whole words.
void StoreAfter(void* to, const void* from, size_t bytes) {
  using Word [[gnu::may_alias]] = uint32_t;
  for (size_t i = 0; i < bytes / sizeof(Word); ++i) {
    __atomic_store_n(static_cast<Word*>(to) + i, static_cast<const Word*>(from)[i],
                     __ATOMIC_RELEASE);
  }
}

// A file of zeros. The link in the run directory comes first: what it names can always be found.
absl::StatusOr<UniqueFd> CreateIn(std::string_view run_directory, size_t bytes) {
  const std::string path = FlightPath(run_directory);
  RETURN_IF_ERROR(RemoveAll(path));
  std::string name = absl::StrCat(kFlightSharedMemory, "/terrace-flight-XXXXXX");
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

}  // namespace

absl::StatusOr<std::unique_ptr<FlightWriter>> FlightWriter::Create(std::string_view run_directory,
                                                                   std::string_view program_sha256,
                                                                   size_t streams,
                                                                   const Clock* clock) {
  if (streams > kFlightStreamsMax) {
    return absl::InvalidArgumentError(absl::StrCat("the program has ", streams,
                                                   " streams, a rank can follow ",
                                                   kFlightStreamsMax, " of them"));
  }
  const size_t bytes = FlightBytes(streams, kFlightSteps);
  UniqueFd fd;
  if (!run_directory.empty()) {
    ASSIGN_OR_RETURN(fd, CreateIn(run_directory, bytes));
  }
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      fd.valid() ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd.get(), 0);
  if (memory == MAP_FAILED) return absl::ErrnoToStatus(errno, "cannot map the flight recorder");
  auto* layout = static_cast<FlightLayout*>(memory);
  FlightHeader& header = layout->header;
  header.streams = static_cast<uint32_t>(streams);
  header.events = kFlightEvents;
  header.steps = kFlightSteps;
  header.pid = getpid();
  std::memcpy(header.program_sha256, program_sha256.data(),
              std::min(program_sha256.size(), sizeof header.program_sha256));
  header.sequence = kFlightNoSequence;
  for (size_t i = 0; i < streams; ++i) new (layout->counters() + i) FlightCounter;
  // Last: a file without it is not a recorder yet.
  StoreAfter(header.magic, kFlightMagic, sizeof kFlightMagic);
  return std::unique_ptr<FlightWriter>(
      new FlightWriter(std::string(run_directory), layout, bytes, clock));
}

FlightWriter::FlightWriter(std::string run_directory, FlightLayout* layout, size_t mapped_bytes,
                           const Clock* clock)
    : run_directory_(std::move(run_directory)),
      layout_(layout),
      mapped_bytes_(mapped_bytes),
      clock_(clock) {}

FlightWriter::~FlightWriter() {
  End();
  munmap(layout_, mapped_bytes_);
  if (!run_directory_.empty()) SettleFlight(run_directory_).IgnoreError();  // the daemon tries too
}

std::span<FlightCounter> FlightWriter::progress() {
  return {layout_->counters(), layout_->header.streams};
}

void FlightWriter::Begin(int32_t sequence) {
  FlightHeader& header = layout_->header;
  At(header.run).fetch_add(1, std::memory_order_acq_rel);
  for (FlightCounter& counter : progress()) counter.finished.store(0, std::memory_order_relaxed);
  At(header.sequence).store(sequence, std::memory_order_relaxed);
  At(header.run).fetch_add(1, std::memory_order_acq_rel);
}

void FlightWriter::End() {
  FlightHeader& header = layout_->header;
  At(header.run).fetch_add(1, std::memory_order_acq_rel);
  At(header.sequence).store(kFlightNoSequence, std::memory_order_relaxed);
  At(header.run).fetch_add(1, std::memory_order_acq_rel);
}

void FlightWriter::SetStep(int64_t step) {
  At(layout_->header.step).store(step, std::memory_order_relaxed);
}

void FlightWriter::Enter(FlightActivity activity) {
  FlightHeader& header = layout_->header;
  At(header.activity).store(static_cast<uint32_t>(activity), std::memory_order_relaxed);
  At(header.places).fetch_add(1, std::memory_order_relaxed);
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
  if (const auto sample = process_.Read(); sample.has_value()) {
    event.resident_bytes = sample->resident;
    event.anonymous_bytes = sample->anonymous;
  }
  return event;
}

void FlightWriter::Add(const FlightEvent& event) {
  const uint64_t number = At(layout_->header.events_begun).fetch_add(1, std::memory_order_acq_rel);
  FlightEventSlot& slot = layout_->ring[number % kFlightEvents];
  At(slot.stamp).store(0, std::memory_order_relaxed);
  StoreAfter(&slot.event, &event, sizeof event);
  At(slot.stamp).store(number + 1, std::memory_order_release);
}

void FlightWriter::KeepStep(int64_t step, std::string_view message) {
  if (step <= 0 || message.size() > kFlightStepBytesMax) return;
  FlightStepSlot& slot = layout_->steps()[static_cast<size_t>(step) % kFlightSteps];
  alignas(uint32_t) char text[kFlightStepBytesMax] = {};
  std::memcpy(text, message.data(), message.size());
  const auto bytes = static_cast<uint32_t>(message.size());
  At(slot.step).store(0, std::memory_order_relaxed);
  StoreAfter(&slot.bytes, &bytes, sizeof bytes);
  StoreAfter(slot.message, text, sizeof text);
  At(slot.step).store(step, std::memory_order_release);
}

void FlightWriter::SetToldStep(int64_t step) {
  At(layout_->header.told_step).store(step, std::memory_order_relaxed);
}

}  // namespace terrace
