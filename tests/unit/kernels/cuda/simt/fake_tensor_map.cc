// The driver's descriptor of a tensor, made as strictly as its documentation: rank, sizes, strides
// and the box; what kernels/cuda does not use (interleaving, steps, other types) is refused.
//
// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "tests/unit/kernels/cuda/simt/cuda.h"
#include "tests/unit/kernels/cuda/simt/hopper.h"

using namespace terrace::simt;  // NOLINT: the names below are CUDA's own

static_assert(sizeof(Tensor) <= sizeof(CUtensorMap));

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, unsigned rank,
                                void* data, const unsigned long long* sizes,
                                const unsigned long long* strides, const unsigned* box,
                                const unsigned* steps, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion,
                                CUtensorMapFloatOOBfill fill) {
  constexpr unsigned kElementBytes = 2;
  static constexpr unsigned kSwizzleBytes[] = {0, 32, 64, 128};
  if (type != CU_TENSOR_MAP_DATA_TYPE_UINT16 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
      fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE || rank == 0 || rank > kMaxTensorRank ||
      reinterpret_cast<uintptr_t>(map) % 64 != 0 || reinterpret_cast<uintptr_t>(data) % 16 != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Tensor tensor = {.mark = kTensorMark,
                   .data = static_cast<const unsigned char*>(data),
                   .rank = rank,
                   .swizzle_bytes = kSwizzleBytes[swizzle]};
  const unsigned inner = box[0] * kElementBytes;
  if (inner % 16 != 0 || (tensor.swizzle_bytes > 0 && inner > tensor.swizzle_bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (unsigned d = 0; d < rank; ++d) {
    const bool stride_fits = d == 0 || (strides[d - 1] % 16 == 0 && strides[d - 1] < (1ull << 40));
    if (sizes[d] == 0 || sizes[d] > (1ull << 32) || box[d] == 0 || box[d] > 256 || steps[d] != 1 ||
        !stride_fits) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    tensor.size[d] = sizes[d];
    tensor.box[d] = static_cast<uint16_t>(box[d]);
    if (d > 0) tensor.stride_bytes[d - 1] = strides[d - 1];
  }
  std::memset(map, 0, sizeof(*map));
  std::memcpy(map, &tensor, sizeof(tensor));
  return CUDA_SUCCESS;
}
