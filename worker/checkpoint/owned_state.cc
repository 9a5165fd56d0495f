// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/owned_state.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/checkpoint/blocks.h"
#include "worker/checkpoint/numbers/finite.h"

namespace terrace {
namespace {

// Gaps up to this size are read with what lies around them rather than split a window.
constexpr int64_t kGapBytes = 64 << 10;

// Bytes [begin, end) of the region to byte `file_offset` of the file.
struct Part {
  int64_t begin;
  int64_t end;
  int64_t file_offset;
};

// Parts of one tensor that are moved together: bytes [begin, end) hold all of them.
struct Window {
  const StateTensor* tensor;
  Region* region;
  int64_t begin;
  int64_t end;
  size_t first_part;
  size_t parts;
};

class OwnedWindows {
 public:
  explicit OwnedWindows(int64_t window_bytes) : window_bytes_(window_bytes) {}

  // `file_offset`: where the tensor begins.
  void Add(const StateTensor& tensor, int64_t file_offset);
  size_t size() const { return windows_.size(); }
  absl::Status Write(size_t index, Block* block, SafetensorsWriter* writer) const;

 private:
  void AddSlice(const StateTensor& tensor, const StateSlice& slice, int64_t file_offset,
                bool continues);
  bool Joins(int64_t begin, int64_t end) const;

  const int64_t window_bytes_;
  std::vector<Window> windows_;
  std::vector<Part> parts_;
};

void OwnedWindows::Add(const StateTensor& tensor, int64_t file_offset) {
  std::vector<const StateSlice*> slices;
  for (const StateSlice& slice : tensor.slices) {
    if (slice.owned) slices.push_back(&slice);
  }
  // In the order of memory: rows that are cut by columns are near each other there.
  std::sort(slices.begin(), slices.end(), [](const StateSlice* a, const StateSlice* b) {
    return std::pair(a->buffer, a->offset) < std::pair(b->buffer, b->offset);
  });
  const StateSlice* last = nullptr;
  for (const StateSlice* slice : slices) {
    // Between two slices of one buffer lies only state, which nobody writes meanwhile.
    AddSlice(tensor, *slice, file_offset, last != nullptr && last->buffer == slice->buffer);
    last = slice;
  }
}

void OwnedWindows::AddSlice(const StateTensor& tensor, const StateSlice& slice, int64_t file_offset,
                            bool continues) {
  const int64_t slice_end = slice.offset + slice.elements * tensor.element_bytes();
  int64_t file = file_offset + slice.begin * tensor.element_bytes();
  for (int64_t begin = slice.offset; begin < slice_end;) {
    const int64_t end = std::min(slice_end, WindowEnd(begin, window_bytes_));
    if (continues && begin == slice.offset && Joins(begin, end)) {
      windows_.back().end = end;
      ++windows_.back().parts;
    } else {
      windows_.push_back({&tensor, slice.region, begin, end, parts_.size(), 1});
    }
    parts_.push_back({begin, end, file});
    file += end - begin;
    begin = end;
  }
}

bool OwnedWindows::Joins(int64_t begin, int64_t end) const {
  const Window& last = windows_.back();
  return begin - last.end <= kGapBytes && end <= WindowEnd(last.begin, window_bytes_);
}

absl::Status OwnedWindows::Write(size_t index, Block* block, SafetensorsWriter* writer) const {
  const Window& window = windows_[index];
  std::span<const std::byte> held;
  if (const std::byte* data = window.region->data(); data != nullptr) {
    held = {data + window.begin, static_cast<size_t>(window.end - window.begin)};
  } else {
    const std::span<std::byte> read = block->For(window.begin, window.end - window.begin);
    RETURN_IF_ERROR(
        WithTensor(window.region->Read(window.begin, read), "read", window.tensor->stored_name));
    held = read;
  }
  for (const Part& part : std::span(parts_).subspan(window.first_part, window.parts)) {
    const auto bytes = held.subspan(part.begin - window.begin, part.end - part.begin);
    if (!AllFinite(bytes, window.tensor->dtype)) {
      return absl::OutOfRangeError(absl::StrCat(
          window.tensor->stored_name,
          " holds infinities or no numbers: training has diverged; lower train.optimizer.lr or "
          "lengthen train.schedule.warmup_steps, and go on from an earlier checkpoint"));
    }
    RETURN_IF_ERROR(writer->WriteAt(part.file_offset, bytes));
  }
  return absl::OkStatus();
}

}  // namespace

bool OwnsSome(const StateTensor& tensor) {
  return std::any_of(tensor.slices.begin(), tensor.slices.end(),
                     [](const StateSlice& slice) { return slice.owned; });
}

absl::Status WriteOwned(std::span<const StateTensor* const> tensors, SafetensorsWriter* writer) {
  std::vector<std::pair<int64_t, const StateTensor*>> by_offset;
  bool addressable = true;
  for (const StateTensor* tensor : tensors) {
    ASSIGN_OR_RETURN(const int64_t offset,
                     writer->OffsetOf({tensor->stored_name, tensor->dtype, tensor->shape}));
    by_offset.emplace_back(offset, tensor);
    addressable = addressable && tensor->addressable();
  }
  std::sort(by_offset.begin(), by_offset.end());
  const int threads = addressable ? 1 : kLeastThreadsWithoutAddress;
  OwnedWindows windows(WindowBytes(threads));
  for (const auto& [offset, tensor] : by_offset) windows.Add(*tensor, offset);
  return ForEachWindow(windows.size(), threads, [&](size_t index, Block* block) {
    return windows.Write(index, block, writer);
  });
}

}  // namespace terrace
