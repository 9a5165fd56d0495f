// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/state/tiles.h"

#include <algorithm>

#include "coordinator/compiler/state/partition.h"

namespace terrace::compiler {
namespace {

// Products are slow with fewer rows or columns.
constexpr int64_t kTileSize = 256;

// Parts of a matrix stand one below the other.
std::vector<Part> CutRows(const std::vector<Part>& parts, int64_t begin, int64_t end) {
  std::vector<Part> cut;
  for (Part part : parts) {
    const int64_t top = part.offset / part.row_stride;
    const int64_t from = std::max(top, begin), to = std::min(top + part.rows, end);
    if (from >= to) continue;
    part.row += from - top;
    part.rows = to - from;
    part.offset = (from - begin) * part.row_stride;
    cut.push_back(part);
  }
  return cut;
}

// REQUIRES: parts of one tensor or a single one, side by side.
std::vector<Part> CutColumns(const std::vector<Part>& parts, int64_t begin, int64_t end) {
  std::vector<Part> cut;
  for (Part part : parts) {
    const int64_t left = part.offset;
    const int64_t from = std::max(left, begin), to = std::min(left + part.columns, end);
    if (from >= to) continue;
    part.column += from - left;
    part.columns = to - from;
    part.offset = from - begin;
    part.row_stride = end - begin;
    cut.push_back(part);
  }
  return cut;
}

}  // namespace

bool IsTiled(TensorRole role) {
  using enum TensorRole;
  return role == kLmHead || role == kQkv || role == kQ || role == kAttentionOut || role == kMlpUp ||
         role == kMlpGate || role == kMlpDown;
}

std::vector<Parameter> CutIntoTiles(const ModelConfig& config, const Parameter& whole,
                                    int64_t tile_bytes) {
  const TensorRole role = whole.first().role;
  const bool by_inputs = SplitByInputs(role);
  // The head is stored [outputs, inputs] in all families.
  const bool inputs_are_rows = config.conv1d_weights && role != TensorRole::kLmHead;
  const int side = by_inputs == inputs_are_rows ? 0 : 1;
  const int64_t size = whole.shape[side], other = whole.shape[1 - side];
  const int64_t most = tile_bytes / kernels::SizeOf(whole.dtype) / other;
  const int64_t step = std::max(kTileSize, most / kTileSize * kTileSize);
  if (size <= most || size <= step) return {whole};
  std::vector<Parameter> tiles;
  for (int64_t begin = 0; begin < size; begin += step) {
    const int64_t end = std::min(size, begin + step);
    Parameter tile = whole;
    tile.shape[side] = end - begin;
    tile.parts = side == 0 ? CutRows(whole.parts, begin, end) : CutColumns(whole.parts, begin, end);
    tile.tile = {.begin = begin, .size = end - begin, .of_inputs = by_inputs};
    tiles.push_back(std::move(tile));
  }
  tiles.front().tiles = static_cast<int>(tiles.size());
  return tiles;
}

}  // namespace terrace::compiler
