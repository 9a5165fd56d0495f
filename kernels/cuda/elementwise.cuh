// The kernel of all elementwise ops: each thread takes one pack of neighbouring elements of a row
// from every operand, with 16-byte accesses where all operands allow.
//
// An op is a small struct: kIn and kOut are bit masks of the operands that it reads and writes, and
// Apply turns one element of each into results. An element is read by the thread that writes it and
// by no other, so outputs may lie in the memory of inputs. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <span>

#include "kernels/cuda/launch.cuh"

namespace terrace::kernels::cuda {

inline constexpr int kMaxElementOperands = 5;

struct ElementArguments {
  Operand operands[kMaxElementOperands];
  int64_t rows;
  int64_t columns;
  int64_t packs_per_row;
  bool wide;  // every pack but a row's last may be moved 16 bytes at a time
};

// 16 bytes of memory.
struct alignas(16) Wide {
  uint32_t words[4];
};

template <typename T>
__device__ inline void LoadHalves(const void* from, int64_t at, float* to) {
  const Wide wide = *reinterpret_cast<const Wide*>(static_cast<const T*>(from) + at);
  for (int i = 0; i < 4; ++i) {
    to[2 * i] = ToFloat(T{static_cast<uint16_t>(wide.words[i] & 0xffffu)});
    to[2 * i + 1] = ToFloat(T{static_cast<uint16_t>(wide.words[i] >> 16)});
  }
}

template <typename T>
__device__ inline void StoreHalves(void* to, int64_t at, const float* from) {
  Wide wide;
  for (int i = 0; i < 4; ++i) wide.words[i] = PackPair<T>(from[2 * i], from[2 * i + 1]);
  *reinterpret_cast<Wide*>(static_cast<T*>(to) + at) = wide;
}

__device__ inline void LoadPack(const Operand& from, int64_t at, float* to) {
  if (from.bf16) return LoadHalves<BF16>(from.data, at, to);
  if (from.f16) return LoadHalves<F16>(from.data, at, to);
  struct alignas(16) Four {
    float values[4];
  };
  const Four* halves = reinterpret_cast<const Four*>(static_cast<const float*>(from.data) + at);
  const Four low = halves[0], high = halves[1];
  for (int i = 0; i < 4; ++i) {
    to[i] = low.values[i];
    to[4 + i] = high.values[i];
  }
}

__device__ inline void StorePack(const Operand& to, int64_t at, const float* from) {
  if (to.bf16) return StoreHalves<BF16>(to.data, at, from);
  if (to.f16) return StoreHalves<F16>(to.data, at, from);
  struct alignas(16) Four {
    float values[4];
  };
  Four* halves = reinterpret_cast<Four*>(static_cast<float*>(to.data) + at);
  halves[0] = {{from[0], from[1], from[2], from[3]}};
  halves[1] = {{from[4], from[5], from[6], from[7]}};
}

template <typename ElementOp>
__device__ void ApplyToPack(const ElementArguments& arguments, const ElementOp& op, int64_t row,
                            int64_t column) {
  constexpr int kPackSize = static_cast<int>(kPack);
  float values[kMaxElementOperands][kPack] = {};
  const int64_t left = arguments.columns - column;
  const bool wide = arguments.wide && left >= kPack;
  const int count = left >= kPack ? kPackSize : static_cast<int>(left);
#pragma unroll
  for (int k = 0; k < kMaxElementOperands; ++k) {
    if ((ElementOp::kIn >> k & 1) == 0) continue;
    const Operand& from = arguments.operands[k];
    if (wide && from.data != nullptr) {
      LoadPack(from, row * from.row_stride + column, values[k]);
      continue;
    }
#pragma unroll
    for (int i = 0; i < kPackSize; ++i) {
      values[k][i] = from.data != nullptr && i < count ? from.Load(row, column + i) : 0.0f;
    }
  }
#pragma unroll
  for (int i = 0; i < kPackSize; ++i) {
    float element[kMaxElementOperands] = {};
#pragma unroll
    for (int k = 0; k < kMaxElementOperands; ++k) {
      if ((ElementOp::kIn >> k & 1) != 0) element[k] = values[k][i];
    }
    if (i < count) op.Apply(element, column + i);
#pragma unroll
    for (int k = 0; k < kMaxElementOperands; ++k) {
      if ((ElementOp::kOut >> k & 1) != 0) values[k][i] = element[k];
    }
  }
#pragma unroll
  for (int k = 0; k < kMaxElementOperands; ++k) {
    if ((ElementOp::kOut >> k & 1) == 0) continue;
    const Operand& to = arguments.operands[k];
    if (wide) {
      StorePack(to, row * to.row_stride + column, values[k]);
      continue;
    }
#pragma unroll
    for (int i = 0; i < kPackSize; ++i) {
      if (i < count) to.Store(row, column + i, values[k][i]);
    }
  }
}

template <typename ElementOp>
__global__ void __launch_bounds__(kElementThreads)
    ElementKernel(ElementArguments arguments, ElementOp op) {
  const int64_t packs = arguments.rows * arguments.packs_per_row;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t pack = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; pack < packs;
       pack += step) {
    const int64_t row = arguments.rows == 1 ? 0 : pack / arguments.packs_per_row;
    ApplyToPack(arguments, op, row, (pack - row * arguments.packs_per_row) * kPack);
  }
}

inline bool AllowsWide(const TensorView& view, bool one_row) {
  if (view.absent()) return true;
  const bool start = reinterpret_cast<uintptr_t>(view.data) % 16 == 0;
  return start && (one_row || view.row_stride * SizeOf(view.dtype) % 16 == 0);
}

// Starts the op on operands of one shape; absent ones are read as zeros. `by_columns` says that
// Apply looks at its column: dense operands are one long row otherwise.
template <typename ElementOp>
Status LaunchElements(const char* what, std::span<const TensorView> operands, const ElementOp& op,
                      const Context& context, bool by_columns = false) {
  const TensorView& first = operands.front();
  const bool one_row =
      !by_columns && std::all_of(operands.begin(), operands.end(), [](const TensorView& view) {
        return view.absent() || view.dense();
      });
  ElementArguments arguments = {};
  arguments.rows = one_row ? 1 : first.rows();
  arguments.columns = one_row ? first.Elements() : first.RowElements();
  arguments.packs_per_row = DivideUp(arguments.columns, kPack);
  arguments.wide = true;
  for (size_t k = 0; k < operands.size(); ++k) {
    arguments.operands[k] = OperandOf(operands[k]);
    arguments.wide = arguments.wide && AllowsWide(operands[k], one_row);
  }
  return Launch(what, ElementKernel<ElementOp>, ElementShape(arguments.rows, arguments.columns),
                context, arguments, op);
}

}  // namespace terrace::kernels::cuda
