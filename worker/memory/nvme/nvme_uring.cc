// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/nvme/nvme_uring.h"

#include <liburing.h>
#include <sys/resource.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/memory/nvme/nvme_errors.h"

namespace terrace {
namespace {

constexpr int64_t kBufferBytes = int64_t{1} << 30;  // the system's limit of one registered buffer
constexpr int kMaxBuffers = 1 << 14;                // and of their number
constexpr uint64_t kNotStarted = UINT64_MAX;        // in place of a slot

std::string MemlockLimit() {
  struct rlimit limit = {};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return "memlock unlimited";
  }
  return absl::StrCat("memlock ", NvmeBytesText(static_cast<int64_t>(limit.rlim_cur)));
}

}  // namespace

struct UringIo::Ring {
  io_uring ring = {};
  bool ready = false;
  std::vector<int> files;
  bool files_registered = false;
  std::span<std::byte> memory;  // registered, in buffers of kBufferBytes
  std::string buffers = "unregistered buffers";
  bool buffers_refused = false;

  ~Ring() {
    if (ready) io_uring_queue_exit(&ring);
  }

  // Index of the registered buffer that holds all of the request; -1 when none does.
  int BufferOf(const BlockRequest& request) const {
    if (request.memory < memory.data()) return -1;
    const int64_t begin = request.memory - memory.data();
    if (begin + request.bytes > static_cast<int64_t>(memory.size())) return -1;
    const int64_t index = begin / kBufferBytes;
    return (begin + request.bytes - 1) / kBufferBytes == index ? static_cast<int>(index) : -1;
  }
};

UringIo::UringIo(std::unique_ptr<Ring> ring) : ring_(std::move(ring)) {}
UringIo::~UringIo() = default;

absl::StatusOr<std::unique_ptr<UringIo>> UringIo::Create(std::span<const int> files, int depth) {
  auto made = std::make_unique<Ring>();
  io_uring_params params = {};
  params.flags = IORING_SETUP_COOP_TASKRUN;  // no interrupt of the thread: it reaps by itself
  int error = io_uring_queue_init_params(depth, &made->ring, &params);
  if (error == -EINVAL) {  // before Linux 5.19
    params = {};
    error = io_uring_queue_init_params(depth, &made->ring, &params);
  }
  if (error != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("the system refuses io_uring: ", std::strerror(-error)));
  }
  made->ready = true;
  if ((params.features & IORING_FEAT_EXT_ARG) == 0) {  // waits could not be limited in time
    return absl::FailedPreconditionError("this kernel's io_uring is older than Linux 5.11");
  }
  made->files.assign(files.begin(), files.end());
  made->files_registered =
      io_uring_register_files(&made->ring, made->files.data(), made->files.size()) == 0;
  return std::unique_ptr<UringIo>(new UringIo(std::move(made)));
}

void UringIo::RegisterMemory(std::span<std::byte> memory) {
  if (!ring_->memory.empty()) io_uring_unregister_buffers(&ring_->ring);
  ring_->memory = {};
  ring_->buffers = "unregistered buffers";
  ring_->buffers_refused = false;
  if (memory.empty()) return;
  std::vector<iovec> buffers;
  for (size_t begin = 0; begin < memory.size(); begin += kBufferBytes) {
    const size_t bytes = std::min<size_t>(kBufferBytes, memory.size() - begin);
    buffers.push_back({.iov_base = memory.data() + begin, .iov_len = bytes});
  }
  const std::string size = NvmeBytesText(static_cast<int64_t>(memory.size()));
  const int error = buffers.size() > kMaxBuffers
                        ? -E2BIG
                        : io_uring_register_buffers(&ring_->ring, buffers.data(), buffers.size());
  if (error == 0) {
    ring_->memory = memory;
    ring_->buffers = absl::StrCat("registered buffers (", size, ")");
  } else {
    ring_->buffers_refused = true;
    ring_->buffers =
        absl::StrCat("unregistered buffers: ", error == -ENOMEM ? MemlockLimit() : "",
                     error == -ENOMEM ? "" : std::strerror(-error), ", ", size, " to pin");
  }
}

int UringIo::Start(const BlockRequest& request) {
  io_uring_sqe* sqe = io_uring_get_sqe(&ring_->ring);
  if (sqe == nullptr) return -EAGAIN;
  const int file =
      ring_->files_registered ? request.file : ring_->files[static_cast<size_t>(request.file)];
  const auto bytes = static_cast<unsigned>(request.bytes);
  const auto offset = static_cast<uint64_t>(request.offset);
  const int buffer = ring_->BufferOf(request);
  const bool write = request.direction == NvmeDirection::kWrite;
  if (write && buffer >= 0) {
    io_uring_prep_write_fixed(sqe, file, request.memory, bytes, offset, buffer);
  } else if (write) {
    io_uring_prep_write(sqe, file, request.memory, bytes, offset);
  } else if (buffer >= 0) {
    io_uring_prep_read_fixed(sqe, file, request.memory, bytes, offset, buffer);
  } else {
    io_uring_prep_read(sqe, file, request.memory, bytes, offset);
  }
  if (ring_->files_registered) sqe->flags |= IOSQE_FIXED_FILE;
  io_uring_sqe_set_data64(sqe, request.slot);
  int submitted = 0;
  do {
    submitted = io_uring_submit(&ring_->ring);
  } while (submitted == -EINTR || (submitted > 0 && io_uring_sq_ready(&ring_->ring) > 0));
  if (submitted > 0) return 0;
  // What stays in the ring would be submitted by the next call, when its slot has been given up.
  // As a no-op that comes back as no slot it does no harm then.
  io_uring_prep_nop(sqe);
  io_uring_sqe_set_data64(sqe, kNotStarted);
  return submitted < 0 ? submitted : -EAGAIN;
}

int UringIo::Reap(std::span<BlockResult> results, absl::Duration timeout) {
  io_uring_cqe* cqe = nullptr;
  if (io_uring_peek_cqe(&ring_->ring, &cqe) != 0) {
    const timespec limit = absl::ToTimespec(timeout);
    __kernel_timespec wait = {.tv_sec = limit.tv_sec, .tv_nsec = limit.tv_nsec};
    if (io_uring_wait_cqe_timeout(&ring_->ring, &cqe, &wait) != 0) return 0;
  }
  int count = 0;
  do {
    const uint64_t slot = io_uring_cqe_get_data64(cqe);
    if (slot != kNotStarted) {
      results[count++] = {.slot = static_cast<uint32_t>(slot), .result = cqe->res};
    }
    io_uring_cqe_seen(&ring_->ring, cqe);
  } while (count < static_cast<int>(results.size()) && io_uring_peek_cqe(&ring_->ring, &cqe) == 0);
  return count;
}

std::string UringIo::description() const {
  return absl::StrCat("io_uring, ", ring_->files_registered ? "registered" : "unregistered",
                      " files, ", ring_->buffers);
}

std::string UringIo::slower_because() const {
  if (!ring_->buffers_refused) return "";
  return absl::StrCat(ring_->buffers, "; raise the limit of locked memory (ulimit -l, ",
                      "LimitMEMLOCK=) or grant CAP_IPC_LOCK");
}

}  // namespace terrace
