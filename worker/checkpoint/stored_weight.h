// A weight as a file holds it, read as the job keeps it: as numbers of any type, or as codes in
// blocks and their scales (kernels/block_codes.h), which a file of Terrace's may hold as well. What
// is stored as it is kept is copied; anything else is converted.
//
// Borrows the reader. Thread-safe: immutable once made.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/program/announced_weights.h"
#include "worker/checkpoint/safetensors/safetensors.h"

namespace terrace {

// Under which keys a file with codes of weights says in which format these are, "nf4", and how many
// elements share a scale.
inline constexpr char kFrozenFormatKey[] = "frozen_format";
inline constexpr char kFrozenBlockKey[] = "frozen_block";

// How the metadata of a file says that its codes are; no row: it has none, or unknown ones.
CodeFormat CodesOfFile(const std::map<std::string, std::string>& metadata);
// Whether this is the name of the scales of some codes of the file.
bool AreScalesOfCodes(const SafetensorsReader& reader, std::string_view name);

class StoredWeight {
 public:
  // `stored`: a tensor of the reader. INVALID_ARGUMENT, naming `path` and the tensor, when it is
  // neither numbers nor codes with their scales.
  static absl::StatusOr<StoredWeight> Of(const SafetensorsReader& reader, std::string_view path,
                                         const StoredTensor& stored);

  // Of a tensor of F32, BF16 or F16.
  static StoredWeight OfNumbers(const StoredTensor& stored);

  const std::string& name() const { return stored_.name; }
  // As it is stored; of codes kU8.
  kernels::DType dtype() const { return stored_.dtype; }
  // Of its elements.
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t elements() const;
  // Whether it is stored so; of no row: as numbers.
  bool IsAs(const CodeFormat& format) const { return codes_ == format; }
  // "bf16", "nf4 blocks of 64".
  std::string FormatText() const;

  // Elements from `begin` on in `dtype`, f32, bf16 or f16.
  absl::Status Read(int64_t begin, kernels::DType dtype, std::span<std::byte> to) const;
  // Bytes of codes, or scales of blocks, from `begin` on.
  absl::Status ReadCodes(int64_t begin, const CodeFormat& format, std::span<std::byte> to) const;
  absl::Status ReadScales(int64_t begin, const CodeFormat& format, std::span<std::byte> to) const;

 private:
  absl::Status ReadNumbers(int64_t begin, std::span<float> to) const;
  absl::Status ReadDecoded(int64_t begin, std::span<float> to) const;

  StoredTensor stored_;
  std::vector<int64_t> shape_;
  CodeFormat codes_;
  std::optional<StoredTensor> scales_;  // of codes
};

}  // namespace terrace
