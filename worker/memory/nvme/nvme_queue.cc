// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/nvme/nvme_queue.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/memory/nvme/nvme_errors.h"

namespace terrace {
namespace {

using SteadyClock = std::chrono::steady_clock;

// A request that makes no progress is tried again: at most a second of a drive that stays busy.
constexpr int kMaxRetries = 100;
constexpr std::chrono::milliseconds kRetryPause{10};

// How long a queue that waits for answers does not look whether another one gave up.
constexpr std::chrono::milliseconds kSilencePoll{500};

bool IsTransient(int error) { return error == EINTR || error == EAGAIN || error == EBUSY; }

size_t IndexOf(NvmeDirection direction) { return direction == NvmeDirection::kWrite ? 1 : 0; }

}  // namespace

NvmeQueue::NvmeQueue(const NvmeStripes& stripes, NvmeChecksums* checksums, NvmeThrottle* throttle,
                     NvmeSilence* silence, std::unique_ptr<BlockIo> io, int depth,
                     absl::Duration timeout)
    : stripes_(stripes),
      checksums_(checksums),
      throttle_(throttle),
      silence_(silence),
      io_(std::move(io)),
      timeout_(timeout),
      slots_(static_cast<size_t>(depth)),
      results_(static_cast<size_t>(depth)) {
  for (size_t i = slots_.size(); i > 0; --i) free_.push_back(static_cast<uint32_t>(i - 1));
}

absl::Status NvmeQueue::Transfer(NvmeDirection direction, std::span<const NvmePiece> pieces) {
  RETURN_IF_ERROR(broken_);
  RETURN_IF_ERROR(silence_->status());
  RETURN_IF_ERROR(CheckPieces(pieces));
  const SteadyClock::time_point begin = SteadyClock::now();
  // Before, because a hole reads as zeros; afterwards, because it may have become one meanwhile.
  RETURN_IF_ERROR(stripes_.CheckSizes());
  RETURN_IF_ERROR(Run(direction, {.pieces = pieces}));
  RETURN_IF_ERROR(stripes_.CheckSizes());
  std::this_thread::sleep_until(turn_ends_);
  int64_t bytes = 0;
  for (const NvmePiece& piece : pieces) bytes += piece.bytes;
  const std::chrono::nanoseconds nanos = SteadyClock::now() - begin;
  bytes_[IndexOf(direction)].fetch_add(bytes, std::memory_order_relaxed);
  nanos_[IndexOf(direction)].fetch_add(nanos.count(), std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status NvmeQueue::CheckPieces(std::span<const NvmePiece> pieces) const {
  for (const NvmePiece& piece : pieces) {
    const auto address = reinterpret_cast<uintptr_t>(piece.memory);
    if (piece.offset % kNvmePageBytes != 0 || piece.bytes % kNvmePageBytes != 0 ||
        address % kNvmePageBytes != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("nvme: a piece of ", piece.bytes, " bytes at ", piece.offset,
                       " does not start and end at multiples of ", kNvmePageBytes));
    }
    if (piece.offset < 0 || piece.bytes < 0 || piece.bytes > stripes_.bytes() ||
        piece.offset > stripes_.bytes() - piece.bytes) {
      return absl::OutOfRangeError(absl::StrCat("nvme: ", piece.bytes, " bytes at ", piece.offset,
                                                " of a file of ", stripes_.bytes()));
    }
  }
  return absl::OkStatus();
}

bool NvmeQueue::Cursor::More() {
  while (piece < pieces.size() && done == pieces[piece].bytes) {
    ++piece;
    done = 0;
  }
  return piece < pieces.size();
}

// After a failure nothing new is started, but what is in flight is awaited: its memory is the
// system's until then.
absl::Status NvmeQueue::Run(NvmeDirection direction, Cursor cursor) {
  absl::Status failure;
  while (true) {
    while (failure.ok() && !free_.empty() && cursor.More()) failure = StartNext(direction, cursor);
    if (free_.size() == slots_.size()) return failure;
    const int count = Reap();
    if (count == 0) return broken_;
    for (int i = 0; i < count; ++i) {
      absl::Status status = Finish(results_[static_cast<size_t>(i)], !failure.ok());
      if (failure.ok()) failure = std::move(status);
    }
  }
}

absl::Status NvmeQueue::StartNext(NvmeDirection direction, Cursor& cursor) {
  const NvmePiece& piece = cursor.pieces[cursor.piece];
  const int64_t offset = piece.offset + cursor.done;
  const NvmeStripes::Place place = stripes_.Locate(offset);
  const int64_t bytes = std::min(place.bytes, piece.bytes - cursor.done);
  turn_ends_ = throttle_->Wait(direction, bytes);
  const uint32_t index = free_.back();
  Slot& slot = slots_[index];
  std::byte* const memory = piece.memory + cursor.done;
  slot = {.request = {.direction = direction,
                      .file = place.file,
                      .offset = place.offset,
                      .memory = memory,
                      .bytes = bytes,
                      .slot = index},
          .file_offset = offset,
          .data = {memory, static_cast<size_t>(bytes)}};
  RETURN_IF_ERROR(Start(slot));
  free_.pop_back();
  cursor.done += bytes;
  if (direction == NvmeDirection::kWrite && checksums_ != nullptr) {
    checksums_->Note(slot.file_offset, slot.data);
  }
  return absl::OkStatus();
}

absl::Status NvmeQueue::Start(Slot& slot) {
  while (true) {
    const int error = -io_->Start(slot.request);
    if (error == 0) return absl::OkStatus();
    if (!IsTransient(error) || ++slot.retries > kMaxRetries) return Failed(slot, error);
    std::this_thread::sleep_for(kRetryPause);
  }
}

int NvmeQueue::Reap() {
  const SteadyClock::time_point deadline = SteadyClock::now() + absl::ToChronoNanoseconds(timeout_);
  while (true) {
    const auto left = std::min<SteadyClock::duration>(deadline - SteadyClock::now(), kSilencePoll);
    const int count = io_->Reap(results_, absl::FromChrono(left));
    if (count > 0) return count;
    broken_ = silence_->status();
    if (!broken_.ok()) return 0;
    if (SteadyClock::now() < deadline) continue;
    const size_t lost = slots_.size() - free_.size();
    broken_ = absl::DeadlineExceededError(absl::StrCat(
        "nvme: ", stripes_.parts()[0].path(), stripes_.parts().size() > 1 ? " and its stripes" : "",
        ": no answer for ", absl::FormatDuration(timeout_), " with ", lost,
        " requests in flight; the drive hangs: check dmesg, name another folder in nvme.paths; the "
        "job can go on from its last checkpoint"));
    silence_->Tell(broken_);
    return 0;
  }
}

absl::Status NvmeQueue::Finish(const BlockResult& result, bool stopping) {
  Slot& slot = slots_[result.slot];
  bool again = false;
  absl::Status status = Advance(slot, result.result, again);
  if (status.ok() && again && !stopping) {
    if (slot.retries > 0) std::this_thread::sleep_for(kRetryPause);
    status = Start(slot);
    if (status.ok()) return status;
  }
  free_.push_back(result.slot);
  return status;
}

absl::Status NvmeQueue::Advance(Slot& slot, int64_t result, bool& again) {
  BlockRequest& request = slot.request;
  if (result == request.bytes) {
    if (request.direction == NvmeDirection::kRead && checksums_ != nullptr) return Verify(slot);
    return absl::OkStatus();
  }
  if (result < 0 && !IsTransient(static_cast<int>(-result))) {
    return Failed(slot, static_cast<int>(-result));
  }
  // Short, at the end of a truncated file or for a passing reason. O_DIRECT goes on only at a whole
  // page.
  if (result >= 0) RETURN_IF_ERROR(stripes_.parts()[static_cast<size_t>(request.file)].CheckSize());
  const int64_t progress = std::max<int64_t>(result, 0) / kNvmePageBytes * kNvmePageBytes;
  request.offset += progress;
  request.memory += progress;
  request.bytes -= progress;
  slot.retries = progress > 0 ? 0 : slot.retries + 1;
  if (slot.retries > kMaxRetries) {
    return Failed(slot, result < 0 ? static_cast<int>(-result) : EAGAIN);
  }
  again = true;
  return absl::OkStatus();
}

absl::Status NvmeQueue::Verify(const Slot& slot) const {
  const int64_t wrong = checksums_->FirstWrong(slot.file_offset, slot.data);
  if (wrong < 0) return absl::OkStatus();
  const NvmeStripes::Place place = stripes_.Locate(wrong);
  return absl::DataLossError(absl::StrCat(
      "nvme: ", stripes_.parts()[static_cast<size_t>(place.file)].path(), " at ", place.offset,
      ": the page read is not the page written (checksum); the drive or something outside changed "
      "it: check dmesg, name another folder in nvme.paths; the job can go on from its last "
      "checkpoint"));
}

absl::Status NvmeQueue::Failed(const Slot& slot, int error) const {
  const BlockRequest& request = slot.request;
  return NvmeRequestError(request.direction,
                          stripes_.parts()[static_cast<size_t>(request.file)].path(),
                          request.offset, request.bytes, error);
}

NvmeCounters NvmeQueue::counters(NvmeDirection direction) const {
  const size_t index = IndexOf(direction);
  return {.bytes = bytes_[index].load(std::memory_order_relaxed),
          .seconds = 1e-9 * static_cast<double>(nanos_[index].load(std::memory_order_relaxed))};
}

std::string NvmeQueue::description() const {
  return absl::StrCat(io_->description(), "; ", stripes_.description());
}

std::string NvmeQueue::slower_because() const {
  const std::string engine = io_->slower_because();
  const std::string files = stripes_.slower_because();
  return absl::StrCat(engine, engine.empty() || files.empty() ? "" : "; ", files);
}

}  // namespace terrace
