// SPDX-License-Identifier: Apache-2.0
// InitialiseWeights: the program's initializers, in parallel over chunks of all tensors.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/convert.h"
#include "worker/checkpoint/random_normal.h"
#include "worker/checkpoint/state_view.h"

namespace terrace {
namespace {

constexpr int64_t kChunkElements = 1 << 16;

// A part of one slice, for one thread.
struct Chunk {
  const StateTensor* tensor;
  const v1::Initializer* initializer;  // null: zero
  int64_t begin;                       // in the tensor
  int64_t elements;
  std::byte* data;
};

void FillChunk(uint64_t seed, const Chunk& chunk, std::vector<float>* scratch) {
  const v1::Initializer* initializer = chunk.initializer;
  if (initializer == nullptr) {
    std::memset(chunk.data, 0, chunk.elements * kernels::SizeOf(chunk.tensor->dtype));
    return;
  }
  const bool is_float =
      chunk.tensor->dtype == kernels::DType::kF32;  // then its arena is written directly
  scratch->resize(is_float ? 0 : chunk.elements);
  const std::span<float> out = is_float
                                   ? std::span(reinterpret_cast<float*>(chunk.data), chunk.elements)
                                   : std::span(*scratch);
  if (initializer->kind() == v1::Initializer::NORMAL) {
    FillNormal(seed, StreamOfName(chunk.tensor->tensor), chunk.begin, initializer->mean(),
               initializer->stddev(), out);
  } else {
    std::fill(out.begin(), out.end(), initializer->mean());
  }
  if (is_float) return;
  ConvertElements(kernels::DType::kF32, reinterpret_cast<const std::byte*>(out.data()),
                  chunk.tensor->dtype, chunk.data, chunk.elements);
}

void AddChunks(const StateTensor& tensor, const v1::Initializer* initializer,
               std::vector<Chunk>* chunks) {
  const int64_t element_bytes = kernels::SizeOf(tensor.dtype);
  for (const StateSlice& slice : tensor.slices) {
    for (int64_t begin = 0; begin < slice.elements; begin += kChunkElements) {
      chunks->push_back({&tensor, initializer, slice.begin + begin,
                         std::min(kChunkElements, slice.elements - begin),
                         slice.data + begin * element_bytes});
    }
  }
}

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
  ZeroPadding(state);
  std::map<std::string, const v1::Initializer*> initializers;
  for (const v1::Initializer& initializer : state.program.initializers()) {
    initializers[initializer.tensor()] = &initializer;
  }
  std::vector<Chunk> chunks;
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
    AddChunks(tensor, initializer, &chunks);
  }
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    std::vector<float> scratch;
    for (size_t i; (i = next.fetch_add(1)) < chunks.size();) FillChunk(seed, chunks[i], &scratch);
  };
  std::vector<std::jthread> helpers;
  for (int i = 1; i < threads; ++i) helpers.emplace_back(work);
  work();
  return absl::OkStatus();  // the helpers are joined here, before what they use dies
}

}  // namespace terrace
