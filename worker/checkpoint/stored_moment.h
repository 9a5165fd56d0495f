// One moment of a tensor as a checkpoint holds it, read as the job keeps it: in f32 or
// bf16, or in int8 blocks, codes and scales apart (kernels/format.h). What is stored as it is kept
// is copied; anything else is converted, blocks of another size too. Blocks are of the tensor's
// elements in order, so what a rank holds of them does not matter.
//
// Borrows the reader. Thread-safe: immutable once made.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/optimizer_rule.h"
#include "proto/v1/program.pb.h"
#include "worker/checkpoint/safetensors/safetensors.h"

namespace terrace {

// Under which key a file of moments says how many elements share a scale.
inline constexpr char kMomentBlockKey[] = "moment_block";
// ... and by which rule they came about; without it, by AdamW.
inline constexpr char kOptimizerKey[] = "optimizer";

// INVALID_ARGUMENT when the file holds states of a rule whose moments mean something else.
absl::Status CheckOptimizer(const SafetensorsReader& reader, std::string_view path,
                            const kernels::OptimizerRow& optimizer);

// Of the scales of moments in blocks the moment's kind, of anything else its own.
v1::StateKind MomentOf(v1::StateKind kind);
bool IsScales(v1::StateKind kind);

class StoredMoment {
 public:
  // `kind`: not that of scales. NOT_FOUND, or INVALID_ARGUMENT when it is of another
  // shape or type.
  static absl::StatusOr<StoredMoment> Find(const SafetensorsReader& reader, std::string_view path,
                                           std::string_view tensor, v1::StateKind kind,
                                           const kernels::OptimizerRow& optimizer,
                                           const std::vector<int64_t>& shape);

  // Whether it is stored as one keeps it of this type; `block`: of kU8.
  bool IsAs(kernels::DType dtype, int64_t block) const {
    return numbers_.dtype == dtype && (dtype != kernels::DType::kU8 || block_ == block);
  }
  // "f32", "int8 blocks of 256".
  std::string FormatText() const;

  // Elements from `begin` on in `dtype`, f32 or bf16.
  absl::Status Read(int64_t begin, kernels::DType dtype, std::span<std::byte> to) const;
  // Codes of elements, or scales of blocks, from `begin` on.
  absl::Status ReadCodes(int64_t begin, int64_t block, std::span<std::byte> to) const;
  absl::Status ReadScales(int64_t begin, int64_t block, std::span<std::byte> to) const;

 private:
  absl::Status ReadNumbers(int64_t begin, std::span<float> to) const;
  absl::Status ReadDecoded(int64_t begin, std::span<float> to) const;

  StoredTensor numbers_;
  std::optional<StoredTensor> scales_;  // of kU8
  int64_t block_ = 0;
  bool is_signed_ = false;
};

}  // namespace terrace
