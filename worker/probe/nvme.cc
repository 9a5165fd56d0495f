// The NVMe tier's engine on a file of its own, which is gone when the measurement ends.
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "worker/memory/nvme/nvme_file.h"
#include "worker/probe/memory.h"

namespace terrace {
namespace {

constexpr int64_t kFileBytes = 128 << 20;
constexpr int64_t kPieceBytes = 8 << 20;  // what one instruction of the optimizer moves
constexpr int kDepths[] = {1, 4, 8, 32};
constexpr int kDefaultDepth = 8;
constexpr double kDirectionSeconds = 0.6;  // at least, so that a drive's own cache does not count
                                           // alone

absl::StatusOr<std::unique_ptr<NvmeFile>> OpenFile(const std::string& folder, int depth) {
  NvmeOptions options = {.paths = {folder}, .name = "probe", .bytes = kFileBytes};
  options.queue_depth = depth;
  return NvmeFile::Create(std::move(options));
}

// One direction, with a queue and memory of its own.
class Mover {
 public:
  static absl::StatusOr<Mover> Create(NvmeFile* file, NvmeDirection direction) {
    ASSIGN_OR_RETURN(Arena memory, Arena::Reserve("terrace-arena-probe-nvme", kPieceBytes));
    memory.Touch(1);
    ASSIGN_OR_RETURN(std::unique_ptr<NvmeQueue> queue, file->NewQueue());
    return Mover(std::move(memory), std::move(queue), direction);
  }

  // Bytes a second over at least `seconds` and all of [begin, end) of the file, round and round:
  // what was never written would be read without the drive.
  absl::StatusOr<double> Rate(int64_t begin, int64_t end, double seconds) {
    const SystemClock clock;
    const int64_t start_ns = clock.MonotonicNanos();
    double passed = 0;
    int64_t moved = 0, offset = begin;
    while (moved < end - begin || passed < seconds) {
      const NvmePiece piece = {.offset = offset, .memory = memory_.data(), .bytes = kPieceBytes};
      RETURN_IF_ERROR(queue_->Transfer(direction_, {&piece, 1}));
      moved += kPieceBytes;
      offset = offset + 2 * kPieceBytes > end ? begin : offset + kPieceBytes;
      passed = static_cast<double>(clock.MonotonicNanos() - start_ns) * 1e-9;
    }
    return static_cast<double>(moved) / passed;
  }

 private:
  Mover(Arena memory, std::unique_ptr<NvmeQueue> queue, NvmeDirection direction)
      : memory_(std::move(memory)), queue_(std::move(queue)), direction_(direction) {
    queue_->RegisterMemory({memory_.data(), static_cast<size_t>(memory_.bytes())});
  }
  Arena memory_;
  std::unique_ptr<NvmeQueue> queue_;
  NvmeDirection direction_;
};

absl::StatusOr<v1::NvmeRate> RateAt(const std::string& folder, int depth) {
  ASSIGN_OR_RETURN(const std::unique_ptr<NvmeFile> file, OpenFile(folder, depth));
  ASSIGN_OR_RETURN(Mover writer, Mover::Create(file.get(), NvmeDirection::kWrite));
  ASSIGN_OR_RETURN(Mover reader, Mover::Create(file.get(), NvmeDirection::kRead));
  v1::NvmeRate rate;
  rate.set_queue_depth(depth);
  ASSIGN_OR_RETURN(const double written, writer.Rate(0, kFileBytes, kDirectionSeconds));
  ASSIGN_OR_RETURN(const double read, reader.Rate(0, kFileBytes, kDirectionSeconds));
  rate.set_write_bytes_per_second(written);
  rate.set_read_bytes_per_second(read);
  return rate;
}

// Both directions at once over the sum of each alone.
absl::StatusOr<double> DuplexRatio(const std::string& folder, const v1::NvmeRate& alone) {
  ASSIGN_OR_RETURN(const std::unique_ptr<NvmeFile> file, OpenFile(folder, kDefaultDepth));
  ASSIGN_OR_RETURN(Mover writer, Mover::Create(file.get(), NvmeDirection::kWrite));
  ASSIGN_OR_RETURN(Mover reader, Mover::Create(file.get(), NvmeDirection::kRead));
  // What is read must have been written, for a hole costs nothing.
  RETURN_IF_ERROR(writer.Rate(0, kFileBytes / 2, kDirectionSeconds).status());
  absl::StatusOr<double> read = 0.0;
  absl::StatusOr<double> written = 0.0;
  {
    std::jthread other([&] { read = reader.Rate(0, kFileBytes / 2, kDirectionSeconds); });
    written = writer.Rate(kFileBytes / 2, kFileBytes, kDirectionSeconds);
  }
  RETURN_IF_ERROR(read.status());
  RETURN_IF_ERROR(written.status());
  return std::clamp(
      (*read + *written) / (alone.read_bytes_per_second() + alone.write_bytes_per_second()), 0.1,
      1.0);
}

}  // namespace

absl::Status MeasureNvme(const std::string& folder, v1::HardwareProfile* profile) {
  for (const int depth : kDepths) {
    ASSIGN_OR_RETURN(*profile->add_nvme_rates(), RateAt(folder, depth));
    const v1::NvmeRate& rate = *profile->nvme_rates().rbegin();
    if (depth != kDefaultDepth) continue;
    profile->set_nvme_read_bytes_per_second(rate.read_bytes_per_second());
    profile->set_nvme_write_bytes_per_second(rate.write_bytes_per_second());
    ASSIGN_OR_RETURN(const double ratio, DuplexRatio(folder, rate));
    profile->set_nvme_duplex_ratio(ratio);
  }
  return absl::OkStatus();
}

}  // namespace terrace
