// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/mapped_range.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/strings.h"

namespace terrace {
namespace {

absl::Status Refused(std::string_view what, int64_t bytes, int error) {
  return absl::ResourceExhaustedError(
      absl::StrCat("the system refuses ", bytes, " bytes of ", Absl(what), ": ",
                   std::strerror(error), "; look at ulimit -v and the memory that is left"));
}

// Inaccessible, and without memory.
bool Close(std::byte* data, int64_t bytes) {
  return ::mmap(data, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                0) != MAP_FAILED;
}

// A signal in the middle undoes it.
int Fallocate(int file, int mode, int64_t offset, int64_t bytes) {
  int result;
  do {
    result = ::fallocate(file, mode, offset, bytes);
  } while (result != 0 && errno == EINTR);
  return result;
}

}  // namespace

absl::StatusOr<MappedRange> MappedRange::Reserve(std::string_view name, int64_t bytes) {
  UniqueFd file(::memfd_create(std::string(name).c_str(), MFD_CLOEXEC));
  if (!file.valid() || ::ftruncate(file.get(), bytes) != 0)
    return Refused("a growing segment", bytes, errno);
  const int64_t span_bytes = bytes + 2 * kAlignment;
  void* const span =
      ::mmap(nullptr, span_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (span == MAP_FAILED) return Refused("addresses", bytes, errno);
  // Between one page and a whole boundary in front of it.
  const auto first = reinterpret_cast<uintptr_t>(span);
  const uintptr_t data = (first / kAlignment + 1) * kAlignment;
  return MappedRange(std::move(file), static_cast<std::byte*>(span), span_bytes,
                     reinterpret_cast<std::byte*>(data));
}

MappedRange::MappedRange(MappedRange&& other) noexcept
    : file_(std::move(other.file_)),
      span_(std::exchange(other.span_, nullptr)),
      span_bytes_(other.span_bytes_),
      data_(other.data_) {}

MappedRange::~MappedRange() {
  if (span_ != nullptr) ::munmap(span_, span_bytes_);
}

absl::Status MappedRange::Map(int64_t offset, int64_t bytes) {
  // The pages come here, where it can be said that there are none.
  if (Fallocate(file_.get(), 0, offset, bytes) != 0) {
    const int error = errno;
    Unmap(offset, bytes);
    return Refused("memory", bytes, error);
  }
  if (::mmap(data_ + offset, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE,
             file_.get(), offset) == MAP_FAILED) {
    const int error = errno;
    Unmap(offset, bytes);
    return Refused("memory", bytes, error);
  }
  return absl::OkStatus();
}

void MappedRange::Unmap(int64_t offset, int64_t bytes) {
  Close(data_ + offset, bytes);
  Fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes);
}

}  // namespace terrace
