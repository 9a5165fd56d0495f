// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/stored_moment.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/utf8.h"
#include "kernels/block_codes.h"
#include "kernels/dynamic_map.h"
#include "kernels/format.h"
#include "proto/program/state_layout.h"
#include "worker/checkpoint/convert.h"
#include "worker/checkpoint/safetensors/safetensors_header.h"
#include "worker/checkpoint/state_view.h"
#include "worker/checkpoint/tensor_files.h"

namespace terrace {
namespace {

using kernels::DType;

constexpr int64_t kNumbers = 8192;  // at a time, on the stack: whole blocks of any size

float ScaleOf(std::span<const float> numbers) {
  uint32_t bits = 0;
  for (const float number : numbers) bits = kernels::LargerMagnitude(bits, number);
  return std::bit_cast<float>(bits);
}

absl::Status BadMoment(std::string_view path, const StoredTensor& stored, const std::string& rule) {
  return absl::InvalidArgumentError(absl::StrCat(Absl(path), ": tensor ", stored.name, " is ",
                                                 Absl(SafetensorsDtypeName(stored.dtype)),
                                                 ShapeText(stored.shape), ", must ", rule));
}

// Of numbers_, which are codes; 0 when the file does not say.
int64_t BlockOf(const SafetensorsReader& reader) {
  const auto found = reader.metadata().find(kMomentBlockKey);
  int64_t block = 0;
  const bool said = found != reader.metadata().end() && absl::SimpleAtoi(found->second, &block);
  return said && block >= 1 && block <= kernels::kInt8Block ? block : 0;
}

}  // namespace

v1::StateKind MomentOf(v1::StateKind kind) {
  if (kind == v1::FIRST_MOMENT_SCALES) return v1::FIRST_MOMENT;
  return kind == v1::SECOND_MOMENT_SCALES ? v1::SECOND_MOMENT : kind;
}

bool IsScales(v1::StateKind kind) { return MomentOf(kind) != kind; }

absl::Status CheckOptimizer(const SafetensorsReader& reader, std::string_view path,
                            const kernels::OptimizerRow& optimizer) {
  const auto found = reader.metadata().find(kOptimizerKey);
  const std::string name = found == reader.metadata().end()
                               ? std::string(kernels::kOptimizerRows[0].name)
                               : found->second;
  const kernels::OptimizerRow* const stored = kernels::FindOptimizer(name);
  if (stored != nullptr && stored->stored == optimizer.stored) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      Absl(path), ": holds the optimizer states of ", CleanText(name), ", from which ",
      Absl(optimizer.name),
      " cannot go on; resume with train.optimizer as it was, or begin with the weights alone: "
      "model.init ",
      Absl(path), "/", kModelFile, " and another checkpoint.directory"));
}

absl::StatusOr<StoredMoment> StoredMoment::Find(const SafetensorsReader& reader,
                                                std::string_view path, std::string_view tensor,
                                                v1::StateKind kind,
                                                const kernels::OptimizerRow& optimizer,
                                                const std::vector<int64_t>& shape) {
  StoredMoment moment;
  moment.is_signed_ = kind == v1::FIRST_MOMENT;
  ASSIGN_OR_RETURN(moment.numbers_, reader.Get(StoredName(tensor, kind, optimizer)));
  const StoredTensor& numbers = moment.numbers_;
  if (numbers.shape != shape) {
    return BadMoment(path, numbers,
                     absl::StrCat("have the model's shape ", ShapeText(shape),
                                  "; use the config.json that belongs to these weights"));
  }
  if (numbers.dtype != DType::kU8) {
    if (CanConvert(numbers.dtype, DType::kF32)) return moment;
    return BadMoment(path, numbers, "be F32, BF16, F16 or U8");
  }
  moment.block_ = BlockOf(reader);
  if (moment.block_ == 0) {
    return BadMoment(path, numbers,
                     absl::StrCat("come with the size of its blocks, '", kMomentBlockKey,
                                  "' in the file's metadata"));
  }
  const v1::StateKind scales =
      moment.is_signed_ ? v1::FIRST_MOMENT_SCALES : v1::SECOND_MOMENT_SCALES;
  ASSIGN_OR_RETURN(moment.scales_, reader.Get(StoredName(tensor, scales, optimizer)));
  const std::vector<int64_t> scales_shape = ScalesShape(shape, moment.block_);
  if (moment.scales_->dtype == DType::kF32 && moment.scales_->shape == scales_shape) return moment;
  return BadMoment(path, *moment.scales_, absl::StrCat("be F32", ShapeText(scales_shape)));
}

std::string StoredMoment::FormatText() const {
  if (numbers_.dtype == DType::kU8) return absl::StrCat("int8 blocks of ", block_);
  return std::string(kernels::Name(numbers_.dtype));
}

absl::Status StoredMoment::Read(int64_t begin, DType dtype, std::span<std::byte> to) const {
  const int64_t bytes = kernels::SizeOf(dtype);
  if (numbers_.dtype == dtype) return numbers_.Read(begin * bytes, to);
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

absl::Status StoredMoment::ReadCodes(int64_t begin, int64_t block, std::span<std::byte> to) const {
  if (IsAs(DType::kU8, block)) return numbers_.Read(begin, to);
  const kernels::DynamicMap& map = is_signed_ ? kernels::kSignedMap : kernels::kUnsignedMap;
  const int64_t elements = numbers_.elements(), end = begin + static_cast<int64_t>(to.size());
  std::array<float, kNumbers> numbers;
  for (int64_t first = begin / block * block; first < end; first += kNumbers) {
    const int64_t count = std::min(kNumbers, elements - first);
    RETURN_IF_ERROR(ReadNumbers(first, std::span(numbers).first(count)));
    for (int64_t at = 0; at < count && first + at < end; at += block) {
      const int64_t in_block = std::min(block, count - at);
      const float inverse =
          kernels::InverseScale(ScaleOf(std::span(numbers).subspan(at, in_block)));
      const int64_t from = std::max(begin, first + at), last = std::min(end, first + at + in_block);
      for (int64_t i = from; i < last; ++i) {
        to[i - begin] = static_cast<std::byte>(
            kernels::DynamicCode(numbers[i - first] * inverse, map.bound, map.start));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status StoredMoment::ReadScales(int64_t begin, int64_t block, std::span<std::byte> to) const {
  if (IsAs(DType::kU8, block)) return scales_->Read(begin * int64_t{sizeof(float)}, to);
  const int64_t elements = numbers_.elements(), blocks_at_once = kNumbers / block;
  std::array<float, kNumbers> numbers;
  while (!to.empty()) {
    const int64_t blocks = std::min<int64_t>(blocks_at_once, to.size() / sizeof(float));
    const int64_t first = begin * block, count = std::min(blocks * block, elements - first);
    RETURN_IF_ERROR(ReadNumbers(first, std::span(numbers).first(count)));
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t in_block = std::min(block, count - b * block);
      const float scale = ScaleOf(std::span(numbers).subspan(b * block, in_block));
      std::memcpy(to.data() + b * sizeof(scale), &scale, sizeof(scale));
    }
    begin += blocks;
    to = to.subspan(blocks * sizeof(float));
  }
  return absl::OkStatus();
}

// At most kNumbers.
absl::Status StoredMoment::ReadNumbers(int64_t begin, std::span<float> to) const {
  if (numbers_.dtype == DType::kU8) return ReadDecoded(begin, to);
  if (numbers_.dtype == DType::kF32)
    return numbers_.Read(begin * int64_t{sizeof(float)}, std::as_writable_bytes(to));
  std::array<std::byte, kNumbers * sizeof(uint16_t)> halves;
  const std::span<std::byte> read = std::span(halves).first(to.size() * sizeof(uint16_t));
  RETURN_IF_ERROR(numbers_.Read(begin * int64_t{sizeof(uint16_t)}, read));
  ConvertElements(numbers_.dtype, read.data(), DType::kF32, std::as_writable_bytes(to).data(),
                  static_cast<int64_t>(to.size()));
  return absl::OkStatus();
}

absl::Status StoredMoment::ReadDecoded(int64_t begin, std::span<float> to) const {
  const kernels::DynamicMap& map = is_signed_ ? kernels::kSignedMap : kernels::kUnsignedMap;
  std::array<std::byte, kNumbers> codes;
  RETURN_IF_ERROR(numbers_.Read(begin, std::span(codes).first(to.size())));
  const int64_t first = begin / block_;
  const int64_t last = (begin + static_cast<int64_t>(to.size()) - 1) / block_;
  std::vector<float> scales(last - first + 1);
  RETURN_IF_ERROR(
      scales_->Read(first * int64_t{sizeof(float)}, std::as_writable_bytes(std::span(scales))));
  for (size_t i = 0; i < to.size(); ++i) {
    const int64_t block = (begin + static_cast<int64_t>(i)) / block_ - first;
    to[i] = map.number[static_cast<uint8_t>(codes[i])] * scales[block];
  }
  return absl::OkStatus();
}

}  // namespace terrace
