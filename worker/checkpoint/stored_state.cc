// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/stored_state.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "worker/checkpoint/convert.h"
#include "worker/checkpoint/safetensors/safetensors_header.h"

namespace terrace {
namespace {

constexpr int64_t kConvertBytes = 32 << 10;  // on the stack

// Elements [begin, ...) of a tensor, converted to `dtype`.
absl::Status ReadConverted(const StoredTensor& stored, int64_t begin, kernels::DType dtype,
                           std::span<std::byte> to) {
  alignas(8) std::array<std::byte, kConvertBytes> read;
  const int64_t from_bytes = kernels::SizeOf(stored.dtype), to_bytes = kernels::SizeOf(dtype);
  while (!to.empty()) {
    const int64_t elements = std::min<int64_t>(kConvertBytes / from_bytes, to.size() / to_bytes);
    RETURN_IF_ERROR(stored.Read(begin * from_bytes, std::span(read).first(elements * from_bytes)));
    ConvertElements(stored.dtype, read.data(), dtype, to.data(), elements);
    begin += elements;
    to = to.subspan(elements * to_bytes);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status StoredState::CheckShape(const std::string& name, std::span<const int64_t> stored,
                                     std::span<const int64_t> model) const {
  if (std::equal(stored.begin(), stored.end(), model.begin(), model.end())) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      Absl(path_), ": tensor ", name, " has the shape ", ShapeText(stored), ", the model's is ",
      ShapeText(model), "; use the config.json that belongs to these weights"));
}

absl::Status StoredState::Add(const StoredTensor& stored, const StateTensor& target) {
  RETURN_IF_ERROR(CheckShape(stored.name, stored.shape, target.shape));
  if (!CanConvert(stored.dtype, target.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat(Absl(path_), ": tensor ", stored.name, " is ",
                                                   Absl(SafetensorsDtypeName(stored.dtype)),
                                                   ", must be F32, BF16 or F16"));
  }
  tensors_.push_back({.stored = stored, .target = target.dtype});
  return absl::OkStatus();
}

absl::Status StoredState::AddWeight(const StoredWeight& stored, const StateTensor& target,
                                    const AnnouncedWeight* announced) {
  Tensor tensor = {.target = target.dtype, .weight = stored};
  if (announced == nullptr || announced->part == AnnouncedWeight::Part::kNumbers) {
    RETURN_IF_ERROR(CheckShape(stored.name(), stored.shape(), target.shape));
  } else {
    const auto& shape = announced->initializer->shape();
    RETURN_IF_ERROR(
        CheckShape(stored.name(), stored.shape(), {shape.data(), size_t(shape.size())}));
    tensor.part = announced->part;
    tensor.codes = CodesOf(*announced->initializer);
  }
  tensors_.push_back(std::move(tensor));
  return absl::OkStatus();
}

absl::Status StoredState::GetWeight(const Tensor& tensor, int64_t begin, std::span<std::byte> to) {
  switch (tensor.part) {
    case AnnouncedWeight::Part::kCodes:
      return tensor.weight->ReadCodes(begin, tensor.codes, to);
    case AnnouncedWeight::Part::kScales:
      return tensor.weight->ReadScales(begin, tensor.codes, to);
    default:
      return tensor.weight->Read(begin, tensor.target, to);
  }
}

absl::Status StoredState::GetMoment(const Tensor& tensor, int64_t begin, std::span<std::byte> to) {
  if (tensor.scales) return tensor.moment->ReadScales(begin, tensor.block, to);
  if (tensor.target == kernels::DType::kU8)
    return tensor.moment->ReadCodes(begin, tensor.block, to);
  return tensor.moment->Read(begin, tensor.target, to);
}

absl::Status StoredState::Get(size_t tensor, int64_t begin, std::span<std::byte> to) const {
  if (tensors_[tensor].moment.has_value()) return GetMoment(tensors_[tensor], begin, to);
  if (tensors_[tensor].weight.has_value()) return GetWeight(tensors_[tensor], begin, to);
  const std::optional<StoredTensor>& stored = tensors_[tensor].stored;
  const kernels::DType target = tensors_[tensor].target;
  if (!stored.has_value()) {
    std::memset(to.data(), 0, to.size());
    return absl::OkStatus();
  }
  if (stored->dtype == target) return stored->Read(begin * kernels::SizeOf(target), to);
  return ReadConverted(*stored, begin, target, to);
}

}  // namespace terrace
