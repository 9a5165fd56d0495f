// A drive that fails, for tests that train as a user does: preloaded (LD_PRELOAD) into every
// process of a test, it meets the requests to files of the NVMe tier, whichever engine makes them.
//
// The file that TERRACE_FAILING_DRIVE names says what happens to requests from now on, in one line
// of kind, direction (read, write, any) and number; while it is not there the drive is well:
//   fail any 5      they fail with this errno
//   slow read 20    they take so many milliseconds longer
//   lie read 0      what is read has one changed byte (of engine: threads)
//   hang write 0    they are never answered
// With io_uring a request is exchanged for one that the kernel itself answers so: EIO comes from a
// read of unmapped memory, which is the only errno it can be; silence from a pipe that nobody
// fills.
//
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <fcntl.h>
#include <liburing.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <optional>
#include <string_view>

namespace {

struct Fault {
  std::array<char, 16> kind = {}, direction = {};
  int number = 0;
};

std::optional<Fault> FaultOf(std::string_view direction) {
  const char* const path = std::getenv("TERRACE_FAILING_DRIVE");
  if (path == nullptr) return std::nullopt;
  std::FILE* const file = std::fopen(path, "re");
  if (file == nullptr) return std::nullopt;
  Fault fault;
  const bool read = std::fscanf(file, "%15s %15s %d", fault.kind.data(), fault.direction.data(),
                                &fault.number) == 3;
  std::fclose(file);
  const std::string_view wanted = fault.direction.data();
  if (!read || (wanted != "any" && wanted != direction)) return std::nullopt;
  return fault;
}

bool Is(const Fault& fault, std::string_view kind) { return fault.kind.data() == kind; }

void Sleep(int milliseconds) {
  const timespec time = {.tv_sec = milliseconds / 1000,
                         .tv_nsec = milliseconds % 1000 * 1'000'000L};
  ::nanosleep(&time, nullptr);
}

// Checkpoints and logs lie on a drive that is well.
bool IsOfTheTier(int fd) {
  std::array<char, 64> link = {};
  std::snprintf(link.data(), link.size(), "/proc/self/fd/%d", fd);
  std::array<char, 4096> path = {};
  return ::readlink(link.data(), path.data(), path.size() - 1) > 0 &&
         std::strstr(path.data(), "/.terrace-") != nullptr;
}

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

// The errno of the call that must not be made.
std::optional<int> Meet(const std::optional<Fault>& fault) {
  if (!fault) return std::nullopt;
  if (Is(*fault, "fail")) return fault->number;
  if (Is(*fault, "slow")) Sleep(fault->number);
  while (Is(*fault, "hang")) ::pause();
  return std::nullopt;
}

// A request that is answered as the fault says takes this one's place.
void Exchange(io_uring_sqe* request) {
  const bool write = request->opcode == IORING_OP_WRITE || request->opcode == IORING_OP_WRITE_FIXED;
  const std::optional<Fault> fault = FaultOf(write ? "write" : "read");
  if (!fault) return;
  static const int unmapped = ::open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
  static const int silent = [] {
    std::array<int, 2> ends = {-1, -1};
    return ::pipe2(ends.data(), O_CLOEXEC) == 0 ? ends[0] : -1;
  }();
  if (Is(*fault, "slow")) Sleep(fault->number);
  if (!Is(*fault, "fail") && !Is(*fault, "hang")) return;
  request->opcode = IORING_OP_READ;
  request->flags &= static_cast<__u8>(~IOSQE_FIXED_FILE);
  request->buf_index = 0;
  request->fd = Is(*fault, "fail") ? unmapped : silent;
  request->off = 0;
}

}  // namespace

extern "C" {

ssize_t pread64(int fd, void* memory, size_t bytes, off64_t offset) {
  static auto* const next = Next<ssize_t(int, void*, size_t, off64_t)>("pread64");
  const auto fault = IsOfTheTier(fd) ? FaultOf("read") : std::nullopt;
  if (const auto error = Meet(fault)) {
    errno = *error;
    return -1;
  }
  const ssize_t moved = next(fd, memory, bytes, offset);
  if (fault && Is(*fault, "lie") && moved > 0) static_cast<char*>(memory)[moved / 2] ^= 1;
  return moved;
}

ssize_t pread(int fd, void* memory, size_t bytes, off_t offset) {
  return pread64(fd, memory, bytes, offset);
}

ssize_t pwrite64(int fd, const void* memory, size_t bytes, off64_t offset) {
  static auto* const next = Next<ssize_t(int, const void*, size_t, off64_t)>("pwrite64");
  if (const auto error = Meet(IsOfTheTier(fd) ? FaultOf("write") : std::nullopt)) {
    errno = *error;
    return -1;
  }
  return next(fd, memory, bytes, offset);
}

ssize_t pwrite(int fd, const void* memory, size_t bytes, off_t offset) {
  return pwrite64(fd, memory, bytes, offset);
}

// Nothing but the NVMe tier uses rings.
int io_uring_submit(io_uring* ring) {
  static auto* const next = Next<int(io_uring*)>("io_uring_submit");
  const io_uring_sq& queue = ring->sq;
  for (unsigned i = queue.sqe_head; i != queue.sqe_tail; ++i)
    Exchange(&queue.sqes[i & *queue.kring_mask]);
  return next(ring);
}

}  // extern "C"
