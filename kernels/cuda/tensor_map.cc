// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/tensor_map.h"

#include <string>

#include "kernels/cuda/driver_call.h"

namespace terrace::kernels::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode FindEncode() {
  static const auto encode = reinterpret_cast<Encode>(DriverCall("cuTensorMapEncodeTiled"));
  return encode;
}

}  // namespace

Status DescribeHeads(const HeadsInMemory& heads, int box_rows, int box_columns, CUtensorMap* map) {
  const Encode encode = FindEncode();
  if (encode == nullptr) return {"cuda: the driver has no cuTensorMapEncodeTiled"};
  constexpr cuuint32_t kRank = 4;
  constexpr int64_t kElementBytes = 2;
  const cuuint64_t sizes[kRank] = {
      static_cast<cuuint64_t>(heads.head_dim), static_cast<cuuint64_t>(heads.heads),
      static_cast<cuuint64_t>(heads.rows), static_cast<cuuint64_t>(heads.sequences)};
  const cuuint64_t strides[kRank - 1] = {static_cast<cuuint64_t>(heads.head_dim * kElementBytes),
                                         static_cast<cuuint64_t>(heads.row_bytes),
                                         static_cast<cuuint64_t>(heads.sequence_bytes)};
  const cuuint32_t box[kRank] = {static_cast<cuuint32_t>(box_columns), 1,
                                 static_cast<cuuint32_t>(box_rows), 1};
  const cuuint32_t steps[kRank] = {1, 1, 1, 1};
  const CUresult result = encode(
      map, CU_TENSOR_MAP_DATA_TYPE_UINT16, kRank, const_cast<void*>(heads.data), sizes, strides,
      box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      box_columns * kElementBytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return {};
  return {"cuda: cuTensorMapEncodeTiled: error " + std::to_string(result)};
}

}  // namespace terrace::kernels::cuda
