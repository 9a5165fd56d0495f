// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/unique_fd.h"

namespace terrace {
namespace {

constexpr int64_t kHugePageBytes = 2 << 20;

int64_t PageBytes() {
  static const int64_t bytes = ::sysconf(_SC_PAGESIZE);
  return bytes;
}

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Address space as laid out by Reserve: slack, one guard page, the arena on a huge-page boundary,
// one guard page.
int64_t SpanBytes(int64_t reserved) { return reserved + kHugePageBytes + 2 * PageBytes(); }

std::byte* ArenaStart(std::byte* span) {
  const auto address = reinterpret_cast<uintptr_t>(span) + PageBytes();
  return span + PageBytes() + (RoundUp(address, kHugePageBytes) - address);
}

// The name of a memfd shows in /proc/<pid>/maps on every kernel. Only the guard page in front of
// the arena and what has second addresses is mapped from it: the rest of the arena stays anonymous,
// because shared memory rarely gets huge pages.
absl::StatusOr<UniqueFd> MapNamedGuard(std::byte* page, std::string_view name) {
  UniqueFd fd(::memfd_create(std::string(name).c_str(), MFD_CLOEXEC));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "memfd_create for an arena");
  if (::mmap(page, PageBytes(), PROT_NONE, MAP_SHARED | MAP_FIXED, fd.get(), 0) == MAP_FAILED) {
    return absl::ErrnoToStatus(errno, "mmap of an arena's guard page");
  }
  return fd;
}

absl::Status Refused(std::string_view name, int64_t bytes, int error) {
  return absl::ResourceExhaustedError(
      absl::StrCat(Absl(name), ": the system refuses ", bytes, " bytes: ", std::strerror(error),
                   "; look at ulimit -v and vm.overcommit_memory, or ask for less"));
}

}  // namespace

absl::StatusOr<Arena> Arena::Reserve(std::string_view name, const ArenaExtent& extent) {
  const int64_t bytes = extent.bytes;
  const int64_t reserved = RoundUp(std::max<int64_t>(bytes, 1), PageBytes());
  const int64_t span_bytes = SpanBytes(reserved + extent.second_bytes());
  void* span =
      ::mmap(nullptr, span_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (span == MAP_FAILED) return Refused(name, bytes, errno);
  Arena arena(ArenaStart(static_cast<std::byte*>(span)), bytes, reserved);
  arena.span_ = static_cast<std::byte*>(span);
  arena.span_bytes_ = span_bytes;
  arena.second_bytes_ = extent.second_bytes();
  ASSIGN_OR_RETURN(const UniqueFd file, MapNamedGuard(arena.data_ - PageBytes(), name));
  if (::mprotect(arena.data_, reserved, PROT_READ | PROT_WRITE) != 0)
    return Refused(name, bytes, errno);
  ::madvise(arena.data_, reserved, MADV_HUGEPAGE);  // a wish: without huge pages it is only slower
  RETURN_IF_ERROR(MapSecondAddresses(file.get(), arena.data_, extent));
  return arena;
}

Arena::Arena(Arena&& other) noexcept { *this = std::move(other); }

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(span_, other.span_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(reserved_, other.reserved_);
  std::swap(span_bytes_, other.span_bytes_);
  std::swap(second_bytes_, other.second_bytes_);
  return *this;
}

Arena::~Arena() {
  if (span_ != nullptr) ::munmap(span_, span_bytes_);
}

namespace {

absl::Status CheckRange(int64_t offset, size_t count, int64_t bytes) {
  if (offset >= 0 && offset <= bytes && static_cast<int64_t>(count) <= bytes - offset)
    return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat(count, " bytes at ", offset, " of an arena of ", bytes));
}

}  // namespace

absl::Status Arena::Read(int64_t offset, std::span<std::byte> to) {
  if (absl::Status status = CheckRange(offset, to.size(), bytes_ + second_bytes_); !status.ok())
    return status;
  if (!to.empty()) std::memcpy(to.data(), data_ + offset, to.size());
  return absl::OkStatus();
}

absl::Status Arena::Write(int64_t offset, std::span<const std::byte> from) {
  if (absl::Status status = CheckRange(offset, from.size(), bytes_ + second_bytes_); !status.ok())
    return status;
  if (!from.empty()) std::memcpy(data_ + offset, from.data(), from.size());
  return absl::OkStatus();
}

void Arena::Touch(int threads) {
  const int64_t part = RoundUp(reserved_ / std::max(threads, 1) + 1, kHugePageBytes);
  const auto touch = [this, part](int64_t begin) {
    const int64_t end = std::min(begin + part, reserved_);
    for (int64_t i = begin; i < end; i += PageBytes())
      static_cast<volatile std::byte*>(data_)[i] = std::byte{0};
  };
  std::vector<std::jthread> workers;
  for (int64_t begin = part; begin < reserved_; begin += part) workers.emplace_back(touch, begin);
  touch(0);
}

}  // namespace terrace
