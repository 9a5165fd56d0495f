// SPDX-License-Identifier: Apache-2.0
#include "worker/checkpoint/initial_state.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/convert.h"
#include "worker/checkpoint/fill.h"
#include "worker/checkpoint/numbers/frozen_codes.h"
#include "worker/checkpoint/numbers/random_normal.h"

namespace terrace {
namespace {

constexpr int64_t kConvertElements = 4096;  // on the stack

void FillFloats(uint64_t seed, uint64_t stream, const v1::Initializer& initializer, int64_t begin,
                std::span<float> out) {
  switch (initializer.kind()) {
    case v1::Initializer::NORMAL:
      return FillNormal(seed, stream, begin, initializer.mean(), initializer.stddev(), out);
    case v1::Initializer::UNIFORM:
      return FillUniform(seed, stream, begin, initializer.mean(), initializer.stddev(), out);
    default:
      std::fill(out.begin(), out.end(), initializer.mean());
  }
}

absl::Status CheckInitializer(const StateTensor& tensor, const AnnouncedWeight& weight) {
  const std::vector<int64_t>& shape = weight.shape;
  if (!shape.empty() && shape != tensor.shape) {
    return absl::InvalidArgumentError(absl::StrCat("the initializer of ", tensor.tensor,
                                                   " has the shape ", ShapeText(shape),
                                                   ", the state ", ShapeText(tensor.shape)));
  }
  const bool numbers = weight.part == AnnouncedWeight::Part::kNumbers;
  if (numbers && !CanConvert(kernels::DType::kF32, tensor.dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat(tensor.tensor, " is not of a floating-point type"));
  }
  return absl::OkStatus();
}

}  // namespace

InitialState::InitialState(int64_t seed, const v1::Program& program)
    : seed_(seed), announced_(AnnouncedByName(program)) {}

const AnnouncedWeight* InitialState::Find(const StateTensor& tensor) const {
  const auto found = announced_.find(tensor.tensor);
  return tensor.kind != v1::WEIGHT || found == announced_.end() ? nullptr : &found->second;
}

bool InitialState::IsAdapter(const StateTensor& tensor) const {
  const AnnouncedWeight* weight = Find(tensor);
  return weight != nullptr && weight->initializer->adapter();
}

absl::Status InitialState::Add(const StateTensor& tensor) {
  const AnnouncedWeight* weight = Find(tensor);
  if (tensor.kind == v1::WEIGHT) {
    if (weight == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("the program has no initializer for ", tensor.tensor));
    }
    RETURN_IF_ERROR(CheckInitializer(tensor, *weight));
  }
  Tensor initial = {.dtype = tensor.dtype};
  if (weight != nullptr) {
    initial.stream = StreamOfName(weight->initializer->tensor());
    initial.initializer = weight->initializer;
    initial.part = weight->part;
  }
  tensors_.push_back(initial);
  return absl::OkStatus();
}

absl::Status InitialState::Get(size_t index, int64_t begin, std::span<std::byte> to) const {
  const auto& [stream, dtype, initializer, part] = tensors_[index];
  if (initializer == nullptr) {
    std::memset(to.data(), 0, to.size());
  } else if (part != AnnouncedWeight::Part::kNumbers) {
    return Encode(tensors_[index], begin, to);
  } else if (dtype == kernels::DType::kF32) {
    FillFloats(seed_, stream, *initializer, begin,
               {reinterpret_cast<float*>(to.data()), to.size() / sizeof(float)});
  } else {
    FillConverted(tensors_[index], begin, to);
  }
  return absl::OkStatus();
}

absl::Status InitialState::Encode(const Tensor& tensor, int64_t begin,
                                  std::span<std::byte> to) const {
  const CodeFormat format = CodesOf(*tensor.initializer);
  const auto fill = [&](int64_t first, std::span<float> numbers) {
    FillFloats(seed_, tensor.stream, *tensor.initializer, first, numbers);
    return absl::OkStatus();
  };
  return tensor.part == AnnouncedWeight::Part::kCodes ? EncodeCodes(format, fill, begin, to)
                                                      : EncodeScales(format, fill, begin, to);
}

void InitialState::FillConverted(const Tensor& tensor, int64_t begin,
                                 std::span<std::byte> to) const {
  std::array<float, kConvertElements> floats;
  const int64_t size = kernels::SizeOf(tensor.dtype);
  while (!to.empty()) {
    const int64_t elements = std::min<int64_t>(kConvertElements, to.size() / size);
    FillFloats(seed_, tensor.stream, *tensor.initializer, begin, std::span(floats).first(elements));
    ConvertElements(kernels::DType::kF32, reinterpret_cast<const std::byte*>(floats.data()),
                    tensor.dtype, to.data(), elements);
    begin += elements;
    to = to.subspan(elements * size);
  }
}

absl::Status InitialiseWeights(int64_t seed, const RankState& state, int threads) {
  ASSIGN_OR_RETURN(const std::vector<StateTensor> tensors, ViewState(state));
  InitialState initial(seed, state.program);
  for (const StateTensor& tensor : tensors) RETURN_IF_ERROR(initial.Add(tensor));
  return FillState(state, tensors, threads, std::bind_front(&InitialState::Get, &initial));
}

}  // namespace terrace
