// How the CPU kernels share work among threads: fixed pieces, contiguous ranges of pieces, one
// range a thread. What a piece computes does not depend on who computes it, so results do not
// depend on the number of threads. Small work stays on the calling thread.
//
// Internal to kernels/cpu. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <omp.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/tensor_view.h"

namespace terrace::kernels::cpu {

// Waking a thread costs about as much as touching this many elements.
inline constexpr int64_t kElementsWorthAThread = 32768;

// Calls body(begin, end) for ranges that cover [0, pieces); a piece is `piece_elements` elements of
// work.
template <typename Body>
void ParallelFor(int64_t pieces, int64_t piece_elements, int threads, const Body& body) {
  const int64_t worth = pieces * piece_elements / kElementsWorthAThread;
  const int used = static_cast<int>(std::clamp<int64_t>(std::min(worth, pieces), 1, threads));
  if (used == 1) {
    body(int64_t{0}, pieces);
    return;
  }
#pragma omp parallel num_threads(used)
  {
    const int64_t count = omp_get_num_threads();
    const int64_t index = omp_get_thread_num();
    body(pieces * index / count, pieces * (index + 1) / count);
  }
}

// Address of an element of a view of any rank: `column` counts the elements within its row.
inline std::byte* Address(const TensorView& view, int64_t row, int64_t column) {
  return view.as<std::byte>() + (row * view.row_stride + column) * SizeOf(view.dtype);
}

// Some consecutive elements of every operand of an elementwise op, none longer than kTileElements.
inline constexpr int64_t kTileElements = 4096;
inline constexpr int kMaxTileOperands = 5;
struct Tile {
  std::array<void*, kMaxTileOperands> data = {};
  std::array<DType, kMaxTileOperands> dtype = {};
  int64_t count = 0;

  template <typename T>
  T* as(int operand) const {
    return static_cast<T*>(data[operand]);
  }
};

// Cuts operands of one shape into tiles and calls run(tile) for each. Dense operands are taken as
// one long row.
template <typename Run>
void ForEachTile(std::span<const TensorView> operands, int threads, const Run& run) {
  const TensorView& first = operands.front();
  const bool dense = std::all_of(operands.begin(), operands.end(),
                                 [](const TensorView& view) { return view.dense(); });
  const int64_t rows = dense ? 1 : first.rows();
  const int64_t columns = dense ? first.Elements() : first.RowElements();
  const int64_t tiles_per_row = (columns + kTileElements - 1) / kTileElements;
  const auto range = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / tiles_per_row;
      const int64_t column = i % tiles_per_row * kTileElements;
      Tile tile = {.count = std::min(kTileElements, columns - column)};
      for (size_t k = 0; k < operands.size(); ++k) {
        tile.data[k] = Address(operands[k], row, column);
        tile.dtype[k] = operands[k].dtype;
      }
      run(tile);
    }
  };
  ParallelFor(rows * tiles_per_row, std::min(kTileElements, columns), threads, range);
}

}  // namespace terrace::kernels::cpu
