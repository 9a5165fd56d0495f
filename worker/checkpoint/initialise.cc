// SPDX-License-Identifier: Apache-2.0
// InitialiseWeights: the program's initializers, in parallel over windows of memory.
#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/convert.h"
#include "worker/checkpoint/fill.h"
#include "worker/checkpoint/random_normal.h"
#include "worker/checkpoint/state_view.h"

namespace terrace {
namespace {

constexpr int64_t kConvertElements = 4096;  // on the stack

void FillFloats(uint64_t seed, uint64_t stream, const v1::Initializer& initializer, int64_t begin,
                std::span<float> out) {
  if (initializer.kind() == v1::Initializer::NORMAL) {
    FillNormal(seed, stream, begin, initializer.mean(), initializer.stddev(), out);
  } else {
    std::fill(out.begin(), out.end(), initializer.mean());
  }
}

// What the tensors of a state begin as, in ViewState's order.
class InitialState {
 public:
  explicit InitialState(uint64_t seed) : seed_(seed) {}
  // Null: zero.
  void Add(const StateTensor& tensor, const v1::Initializer* initializer) {
    tensors_.push_back({StreamOfName(tensor.tensor), tensor.dtype, initializer});
  }

  // A StateSource (fill.h).
  absl::Status Get(size_t index, int64_t begin, std::span<std::byte> to) const {
    const auto& [stream, dtype, initializer] = tensors_[index];
    if (initializer == nullptr) {
      std::memset(to.data(), 0, to.size());
    } else if (dtype == kernels::DType::kF32) {
      FillFloats(seed_, stream, *initializer, begin,
                 {reinterpret_cast<float*>(to.data()), to.size() / sizeof(float)});
    } else {
      FillConverted(tensors_[index], begin, to);
    }
    return absl::OkStatus();
  }

 private:
  struct Tensor {
    uint64_t stream;
    kernels::DType dtype;
    const v1::Initializer* initializer;
  };

  void FillConverted(const Tensor& tensor, int64_t begin, std::span<std::byte> to) const {
    std::array<float, kConvertElements> floats;
    const int64_t size = kernels::SizeOf(tensor.dtype);
    while (!to.empty()) {
      const int64_t elements = std::min<int64_t>(kConvertElements, to.size() / size);
      FillFloats(seed_, tensor.stream, *tensor.initializer, begin,
                 std::span(floats).first(elements));
      ConvertElements(kernels::DType::kF32, reinterpret_cast<const std::byte*>(floats.data()),
                      tensor.dtype, to.data(), elements);
      begin += elements;
      to = to.subspan(elements * size);
    }
  }

  const uint64_t seed_;
  std::vector<Tensor> tensors_;
};

absl::Status CheckInitializer(const StateTensor& tensor, const v1::Initializer& initializer) {
  const std::vector<int64_t> shape(initializer.shape().begin(), initializer.shape().end());
  if (!shape.empty() && shape != tensor.shape) {
    return absl::InvalidArgumentError(absl::StrCat("the initializer of ", tensor.tensor,
                                                   " has the shape ", ShapeText(shape),
                                                   ", the state ", ShapeText(tensor.shape)));
  }
  if (!CanConvert(kernels::DType::kF32, tensor.dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat(tensor.tensor, " is not of a floating-point type"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status InitialiseWeights(int64_t seed, const RankState& state, int threads) {
  ASSIGN_OR_RETURN(const std::vector<StateTensor> tensors, ViewState(state));
  std::map<std::string, const v1::Initializer*> initializers;
  for (const v1::Initializer& initializer : state.program.initializers()) {
    initializers[initializer.tensor()] = &initializer;
  }
  InitialState initial(seed);
  for (const StateTensor& tensor : tensors) {
    const v1::Initializer* initializer = nullptr;
    if (tensor.kind == v1::WEIGHT) {
      const auto found = initializers.find(tensor.tensor);
      if (found == initializers.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("the program has no initializer for ", tensor.tensor));
      }
      initializer = found->second;
      RETURN_IF_ERROR(CheckInitializer(tensor, *initializer));
    }
    initial.Add(tensor, initializer);
  }
  return FillState(state, tensors, threads, std::bind_front(&InitialState::Get, &initial));
}

}  // namespace terrace
