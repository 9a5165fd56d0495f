// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/fill.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/checkpoint/blocks.h"

namespace terrace {
namespace {

struct Piece {
  const StateSlice* slice;
  size_t tensor;
  int64_t end;  // in the region
};

struct StateBuffer {
  Region* region = nullptr;
  std::vector<Piece> pieces;  // by offset
};

// Bytes [begin, end) of the region.
struct Window {
  const StateBuffer* buffer;
  int64_t begin;
  int64_t end;
};

class Filling {
 public:
  Filling(std::span<const StateTensor> tensors, const StateSource& source)
      : tensors_(tensors), source_(source) {}

  absl::Status AddBuffers(const RankState& state);
  void CutWindows(const RankState& state, int64_t window_bytes);
  size_t windows() const { return windows_.size(); }
  absl::Status FillWindow(size_t index, Block* block) const;

 private:
  absl::Status Compose(const Window& window, std::span<std::byte> to) const;
  std::vector<Piece>::const_iterator FirstPiece(const Window& window) const;
  std::string NameOf(const Window& window) const;

  const std::span<const StateTensor> tensors_;
  const StateSource& source_;
  std::map<uint32_t, StateBuffer> buffers_;  // by id
  std::vector<Window> windows_;
};

absl::Status Filling::AddBuffers(const RankState& state) {
  // Also those of which the rank holds padding only.
  for (const v1::StateRange& range : state.program.state()) {
    buffers_[range.buffer()].region = state.regions[state.program.buffers(range.buffer()).arena()];
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    for (const StateSlice& slice : tensors_[i].slices) {
      const int64_t end = slice.offset + slice.elements * tensors_[i].element_bytes();
      buffers_[slice.buffer].pieces.push_back({&slice, i, end});
    }
  }
  for (auto& [id, buffer] : buffers_) {
    std::vector<Piece>& pieces = buffer.pieces;
    std::sort(pieces.begin(), pieces.end(),
              [](const Piece& a, const Piece& b) { return a.slice->offset < b.slice->offset; });
    for (size_t i = 1; i < pieces.size(); ++i) {
      if (pieces[i - 1].end <= pieces[i].slice->offset) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "the state manifest holds ", tensors_[pieces[i - 1].tensor].stored_name, " and ",
          tensors_[pieces[i].tensor].stored_name, " in the same bytes of buffer ", id));
    }
  }
  return absl::OkStatus();
}

void Filling::CutWindows(const RankState& state, int64_t window_bytes) {
  for (const auto& [id, buffer] : buffers_) {
    const v1::Buffer& described = state.program.buffers(id);
    const int64_t end = described.offset() + described.bytes();
    for (int64_t begin = described.offset(); begin < end;) {
      const int64_t window_end = std::min(end, WindowEnd(begin, window_bytes));
      windows_.push_back({&buffer, begin, window_end});
      begin = window_end;
    }
  }
}

absl::Status Filling::FillWindow(size_t index, Block* block) const {
  const Window& window = windows_[index];
  Region* const region = window.buffer->region;
  const int64_t bytes = window.end - window.begin;
  if (region->data() != nullptr) {
    return Compose(window, {region->data() + window.begin, static_cast<size_t>(bytes)});
  }
  const std::span<std::byte> composed = block->For(window.begin, bytes);
  RETURN_IF_ERROR(Compose(window, composed));
  return WithTensor(region->Write(window.begin, composed), "store", NameOf(window));
}

absl::Status Filling::Compose(const Window& window, std::span<std::byte> to) const {
  int64_t done = window.begin;
  const auto zero_until = [&](int64_t end) {
    std::memset(to.data() + (done - window.begin), 0, end - done);
  };
  for (auto piece = FirstPiece(window); piece != window.buffer->pieces.end(); ++piece) {
    const StateSlice& slice = *piece->slice;
    if (slice.offset >= window.end) break;
    const int64_t begin = std::max(slice.offset, window.begin);
    const int64_t end = std::min(piece->end, window.end);
    zero_until(begin);
    const StateTensor& tensor = tensors_[piece->tensor];
    const int64_t element = slice.begin + (begin - slice.offset) / tensor.element_bytes();
    RETURN_IF_ERROR(source_(piece->tensor, element, to.subspan(begin - window.begin, end - begin)));
    done = end;
  }
  zero_until(window.end);
  return absl::OkStatus();
}

std::vector<Piece>::const_iterator Filling::FirstPiece(const Window& window) const {
  const std::vector<Piece>& pieces = window.buffer->pieces;
  return std::partition_point(pieces.begin(), pieces.end(),
                              [&](const Piece& piece) { return piece.end <= window.begin; });
}

// Of the first tensor in it; what is behind the last one belongs to that.
std::string Filling::NameOf(const Window& window) const {
  const std::vector<Piece>& pieces = window.buffer->pieces;
  if (pieces.empty()) return "padding";
  const auto piece = std::min(FirstPiece(window), std::prev(pieces.end()));
  return tensors_[piece->tensor].stored_name;
}

}  // namespace

absl::Status FillState(const RankState& state, std::span<const StateTensor> tensors, int threads,
                       const StateSource& source) {
  const bool addressable = std::all_of(tensors.begin(), tensors.end(),
                                       [](const StateTensor& t) { return t.addressable(); });
  if (!addressable) threads = std::max(threads, kLeastThreadsWithoutAddress);
  Filling filling(tensors, source);
  RETURN_IF_ERROR(filling.AddBuffers(state));
  filling.CutWindows(state, WindowBytes(threads));
  return ForEachWindow(filling.windows(), threads, [&](size_t window, Block* block) {
    return filling.FillWindow(window, block);
  });
}

}  // namespace terrace
