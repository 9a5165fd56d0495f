// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/stored_weight.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "kernels/block_codes.h"
#include "proto/program/state_layout.h"
#include "worker/checkpoint/convert.h"
#include "worker/checkpoint/numbers/frozen_codes.h"
#include "worker/checkpoint/safetensors/safetensors_header.h"
#include "worker/checkpoint/state_view.h"

namespace terrace {
namespace {

using kernels::DType;

constexpr int64_t kNumbers = 8192;  // at a time, on the stack

absl::Status BadWeight(std::string_view path, const StoredTensor& stored, const std::string& rule) {
  return absl::InvalidArgumentError(absl::StrCat(Absl(path), ": tensor ", stored.name, " is ",
                                                 Absl(SafetensorsDtypeName(stored.dtype)),
                                                 ShapeText(stored.shape), ", must ", rule));
}

// What a byte of codes is worth: of its first and of its second element.
using NumbersOfByte = std::array<std::array<float, 2>, 256>;
NumbersOfByte NumbersOf(const kernels::FormatRow& row) {
  NumbersOfByte numbers;
  for (int byte = 0; byte < 256; ++byte) {
    const auto code = static_cast<uint8_t>(byte);
    numbers[byte] = {kernels::BlockNumber(row.packed == 2 ? code & 15 : code, row.format),
                     kernels::BlockNumber(code >> 4, row.format)};
  }
  return numbers;
}

}  // namespace

CodeFormat CodesOfFile(const std::map<std::string, std::string>& metadata) {
  const auto format = metadata.find(kFrozenFormatKey), block = metadata.find(kFrozenBlockKey);
  if (format == metadata.end() || block == metadata.end()) return {};
  CodeFormat codes = {.row = kernels::FindFormat(format->second)};
  const bool known =
      codes.row != nullptr && codes.row->block > 0 && codes.row->format != kernels::Format::kInt8 &&
      absl::SimpleAtoi(block->second, &codes.block) && codes.block >= kernels::kLeastBlock &&
      codes.block <= kernels::kInt8Block && std::has_single_bit(static_cast<uint64_t>(codes.block));
  return known ? codes : CodeFormat{};
}

bool AreScalesOfCodes(const SafetensorsReader& reader, std::string_view name) {
  const std::string ending = CodeScalesName("");
  if (!name.ends_with(ending)) return false;
  const auto codes = reader.Get(name.substr(0, name.size() - ending.size()));
  return codes.ok() && codes->dtype == DType::kU8;
}

absl::StatusOr<StoredWeight> StoredWeight::Of(const SafetensorsReader& reader,
                                              std::string_view path, const StoredTensor& stored) {
  StoredWeight weight = OfNumbers(stored);
  if (stored.dtype != DType::kU8) {
    if (CanConvert(stored.dtype, DType::kF32)) return weight;
    return BadWeight(path, stored, "be F32, BF16 or F16");
  }
  const auto scales = reader.Get(CodeScalesName(stored.name));
  weight.codes_ = CodesOfFile(reader.metadata());
  if (!scales.ok() || weight.codes_.row == nullptr) {
    return BadWeight(
        path, stored,
        absl::StrCat("be F32, BF16 or F16, or codes that ", CodeScalesName(stored.name), " and '",
                     kFrozenFormatKey, "' and '", kFrozenBlockKey,
                     "' in the file's metadata belong to"));
  }
  const bool whole = stored.shape.size() == 2 && stored.shape[1] % weight.codes_.block_bytes() == 0;
  if (!whole) {
    return BadWeight(
        path, stored,
        absl::StrCat("be a matrix of codes, rows of whole blocks of ", weight.codes_.block));
  }
  weight.shape_[1] *= weight.codes_.row->packed;
  const std::vector<int64_t> scales_shape = ScalesShape(weight.shape_, weight.codes_.block);
  if (scales->dtype != DType::kF32 || scales->shape != scales_shape)
    return BadWeight(path, *scales, absl::StrCat("be F32", ShapeText(scales_shape)));
  weight.scales_ = *scales;
  return weight;
}

StoredWeight StoredWeight::OfNumbers(const StoredTensor& stored) {
  StoredWeight weight;
  weight.stored_ = stored;
  weight.shape_ = stored.shape;
  return weight;
}

int64_t StoredWeight::elements() const {
  return stored_.elements() * (codes_.row == nullptr ? 1 : codes_.row->packed);
}

std::string StoredWeight::FormatText() const {
  if (codes_.row == nullptr) return std::string(kernels::Name(stored_.dtype));
  return absl::StrCat(Absl(codes_.row->name), " blocks of ", codes_.block);
}

absl::Status StoredWeight::Read(int64_t begin, DType dtype, std::span<std::byte> to) const {
  const int64_t bytes = kernels::SizeOf(dtype);
  if (stored_.dtype == dtype) return stored_.Read(begin * bytes, to);
  std::array<float, kNumbers> numbers;
  while (!to.empty()) {
    const int64_t count = std::min<int64_t>(kNumbers, to.size() / bytes);
    RETURN_IF_ERROR(ReadNumbers(begin, std::span(numbers).first(count)));
    ConvertElements(DType::kF32, reinterpret_cast<const std::byte*>(numbers.data()), dtype,
                    to.data(), count);
    begin += count;
    to = to.subspan(count * bytes);
  }
  return absl::OkStatus();
}

absl::Status StoredWeight::ReadCodes(int64_t begin, const CodeFormat& format,
                                     std::span<std::byte> to) const {
  if (IsAs(format)) return stored_.Read(begin, to);
  return EncodeCodes(format, std::bind_front(&StoredWeight::ReadNumbers, this), begin, to);
}

absl::Status StoredWeight::ReadScales(int64_t begin, const CodeFormat& format,
                                      std::span<std::byte> to) const {
  if (IsAs(format)) return scales_->Read(begin * int64_t{sizeof(float)}, to);
  return EncodeScales(format, std::bind_front(&StoredWeight::ReadNumbers, this), begin, to);
}

// At most kNumbers.
absl::Status StoredWeight::ReadNumbers(int64_t begin, std::span<float> to) const {
  if (codes_.row != nullptr) return ReadDecoded(begin, to);
  if (stored_.dtype == DType::kF32)
    return stored_.Read(begin * int64_t{sizeof(float)}, std::as_writable_bytes(to));
  std::array<std::byte, kNumbers * sizeof(uint16_t)> halves;
  const std::span<std::byte> read = std::span(halves).first(to.size() * sizeof(uint16_t));
  RETURN_IF_ERROR(stored_.Read(begin * int64_t{sizeof(uint16_t)}, read));
  ConvertElements(stored_.dtype, read.data(), DType::kF32, std::as_writable_bytes(to).data(),
                  static_cast<int64_t>(to.size()));
  return absl::OkStatus();
}

absl::Status StoredWeight::ReadDecoded(int64_t begin, std::span<float> to) const {
  const int64_t end = begin + static_cast<int64_t>(to.size()), packed = codes_.row->packed;
  const int64_t first_byte = begin / packed, bytes = (end - 1) / packed + 1 - first_byte;
  std::array<std::byte, kNumbers + 1> codes;
  RETURN_IF_ERROR(stored_.Read(first_byte, std::span(codes).first(bytes)));
  const int64_t first_block = begin / codes_.block;
  std::vector<float> scales((end - 1) / codes_.block + 1 - first_block);
  RETURN_IF_ERROR(scales_->Read(first_block * int64_t{sizeof(float)},
                                std::as_writable_bytes(std::span(scales))));
  const NumbersOfByte numbers = NumbersOf(*codes_.row);
  for (int64_t i = begin; i < end; ++i) {
    const auto code = static_cast<uint8_t>(codes[i / packed - first_byte]);
    to[i - begin] = numbers[code][i % packed] * scales[i / codes_.block - first_block];
  }
  return absl::OkStatus();
}

}  // namespace terrace
