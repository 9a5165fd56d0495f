// SPDX-License-Identifier: Apache-2.0
#include "worker/vm/rounding_parts.h"

#include <xxhash.h>

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/program/state_layout.h"

namespace terrace {

uint64_t TensorHash(std::string_view tensor) { return XXH3_64bits(tensor.data(), tensor.size()); }

absl::Status ResolveRounding(const v1::Program& program, const Coordinates& rank, int64_t elements,
                             kernels::RoundingAttrs* rounding) {
  auto parts = std::make_shared<std::vector<kernels::RoundingPart>>();
  for (const v1::StateRange& range : program.state()) {
    if (range.buffer() != rounding->buffer) continue;
    const StateRectangle rectangle = RectangleOf(range, program.grid(), rank);
    if (rectangle.rows == 0) continue;
    const int64_t begin = rectangle.position - rounding->first;
    const int64_t end = begin + (rectangle.rows - 1) * rectangle.row_stride + rectangle.columns;
    if (begin >= elements || end <= 0) continue;
    parts->push_back({.begin = begin,
                      .rows = rectangle.rows,
                      .columns = rectangle.columns,
                      .row_stride = rectangle.row_stride,
                      .first = rectangle.begin,
                      .tensor_stride = rectangle.tensor_columns,
                      .key = kernels::RoundingKey(rounding->seed, TensorHash(range.tensor()))});
  }
  if (parts->size() > static_cast<size_t>(kernels::kMaxRoundingParts)) {
    return absl::InvalidArgumentError(absl::StrCat("updates parts of ", parts->size(),
                                                   " tensors at once, must be at most ",
                                                   kernels::kMaxRoundingParts));
  }
  rounding->parts = std::move(parts);
  return absl::OkStatus();
}

}  // namespace terrace
