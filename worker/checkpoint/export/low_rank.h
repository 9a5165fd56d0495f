// What an adapter adds to the matrix that it stands beside: scale * left x right, two thin matrices
// (Hu et al. 2021, LoRA, arXiv 2106.09685), and what rounding makes of the sum.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/tensor_view.h"

namespace terrace {

struct LowRank {
  int64_t rows = 0;  // of the matrix, as it is stored
  int64_t columns = 0;
  int64_t rank = 0;
  float scale = 1;
  std::vector<float> left;   // [rows, rank]
  std::vector<float> right;  // [rank, columns]
};

// `matrix`: `rows` rows. Its transpose.
std::vector<float> Transposed(std::span<const float> matrix, int64_t rows);

// Adds the product's rows from `first_row` on to `weights`, whole rows. In f32: the sum over the
// rank in its order, times the scale, then the weight.
void AddRows(const LowRank& product, int64_t first_row, std::span<float> weights);

// How far merged weights are from what they were rounded to.
struct Rounding {
  int64_t weights = 0;
  int64_t undone = 0;  // of them, stored as they would be without an adapter that changes them
  double change_squares = 0;    // of what the adapter adds, summed
  double rounding_squares = 0;  // of what rounding adds, summed

  // Root mean square of the rounding, as a part of that of the change. 0 where nothing changed.
  double ratio() const;
};

// Rounds `merged` to `dtype` into `stored` (as ConvertElements) and adds to `rounding`. `before`:
// the weights without the adapter.
void RoundMerged(std::span<const float> before, std::span<const float> merged, kernels::DType dtype,
                 std::span<std::byte> stored, Rounding* rounding);

}  // namespace terrace
