// The update of rules whose moments rest in int8 blocks: a warp takes 256 elements, a pack a lane.
// Each lane decodes its codes and updates in f32; the lanes of a block agree on its new scale, and
// encode.
//
// The maps lie in shared memory, copied there once by each block of threads, so the grid is no
// larger than what keeps a GPU busy. A code costs two look-ups (dynamic_map.h).
//
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <variant>

#include "kernels/cuda/code_packs.cuh"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/math.h"
#include "kernels/dynamic_map.h"

namespace terrace::kernels::cuda {
namespace {

constexpr int64_t kGridMax = 1024;

__device__ const DynamicMap kMaps[2] = {kSignedMap, kUnsignedMap};

struct Int8Arguments {
  Operand grad, param;
  uint8_t* m;
  uint8_t* v;  // null where the rule keeps one moment, as v_scales
  float* m_scales;
  float* v_scales;
  int64_t count;
  int64_t block;
  bool wide;
  const float* scale;
  const float* schedule;
  UpdateFactors factors;
};

struct SharedMap {
  float number[DynamicMap::kCodes];
  float bound[DynamicMap::kCodes];
  uint8_t start[DynamicMap::kStarts];

  // By all threads of the block; who reads it waits for them.
  __device__ void CopyFrom(const DynamicMap& map) {
    for (int i = static_cast<int>(threadIdx.x); i < DynamicMap::kStarts; i += blockDim.x) {
      start[i] = map.start[i];
      if (i >= DynamicMap::kCodes) continue;
      number[i] = map.number[i];
      bound[i] = map.bound[i];
    }
  }
};

__device__ CodePack EncodePack(const SharedMap& map, const float* numbers, float scale) {
  const float inverse = InverseScale(scale);
  CodePack pack;
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    pack.codes[i] = DynamicCode(numbers[i] * inverse, map.bound, map.start);
  }
  return pack;
}

// All lanes of the warp come here, also those behind the last element, which have none.
__device__ void UpdateLane(const Int8Arguments& a, const UpdateStep& step,
                           const SharedMap& first_map, const SharedMap& second_map, int64_t first) {
  const int count = ElementsOfPack(first, a.count);
  const bool wide = a.wide && count == kPack;
  const int64_t block = first / a.block;
  float grad[kPack] = {}, param[kPack] = {}, m[kPack] = {}, v[kPack] = {};
  if (wide) {
    LoadPack(a.grad, first, grad);
    LoadPack(a.param, first, param);
  } else {
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      if (i >= count) continue;
      grad[i] = a.grad.Load(0, first + i);
      param[i] = a.param.Load(0, first + i);
    }
  }
  if (count > 0) {
    const CodePack m_codes = LoadCodes(a.m + first, count, wide);
    const CodePack v_codes = a.v != nullptr ? LoadCodes(a.v + first, count, wide) : CodePack();
    const float m_scale = a.m_scales[block];
    const float v_scale = a.v != nullptr ? a.v_scales[block] : 0;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      if (i >= count) continue;  // zero, which makes no scale larger
      m[i] = first_map.number[m_codes.codes[i]] * m_scale;
      v[i] = second_map.number[v_codes.codes[i]] * v_scale;
      UpdateByRule(a.factors.rule, step, grad[i], &param[i], &m[i], &v[i]);
    }
  }
  // What a lane brings here depends on the old scale: all have read it when the new one is known.
  const int lanes = static_cast<int>(a.block / kPack);
  const float m_scale = F32Of(LargestOfLanes(m, lanes));
  const float v_scale = F32Of(LargestOfLanes(v, lanes));
  if (count == 0) return;
  if (first % a.block == 0) {
    a.m_scales[block] = m_scale;
    if (a.v != nullptr) a.v_scales[block] = v_scale;
  }
  StoreCodes(EncodePack(first_map, m, m_scale), a.m + first, count, wide);
  if (a.v != nullptr) StoreCodes(EncodePack(second_map, v, v_scale), a.v + first, count, wide);
  if (wide) {
    StorePack(a.param, first, param);
    return;
  }
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    if (i < count) a.param.Store(0, first + i, param[i]);
  }
}

__global__ void __launch_bounds__(kElementThreads) UpdateInt8Kernel(Int8Arguments a) {
  if (a.scale[3] != 0) return;  // the step is skipped
  __shared__ UpdateStep step;   // its double arithmetic once a block
  __shared__ SharedMap first_map, second_map;
  if (threadIdx.x == 0) step = MakeUpdateStep(a.factors, a.scale[0], a.schedule);
  first_map.CopyFrom(kMaps[0]);
  second_map.CopyFrom(kMaps[1]);
  __syncthreads();
  const int64_t warps = DivideUp(a.count, kWarpElements);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * (blockDim.x / kWarp);
  const int64_t lane = threadIdx.x % kWarp;
  for (int64_t warp = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / kWarp;
       warp < warps; warp += stride) {
    UpdateLane(a, step, first_map, second_map, warp * kWarpElements + lane * kPack);
  }
}

}  // namespace

Status UpdateInt8(const OpAttrs& attrs, std::span<const TensorView> operands,
                  const Context& context) {
  const auto& update = std::get<UpdateAttrs>(attrs);
  const bool second = RowOf(update.rule).moments > 1;
  Int8Arguments arguments = {.grad = OperandOf(operands[0]),
                             .param = OperandOf(operands[1]),
                             .m = operands[2].as<uint8_t>(),
                             .v = second ? operands[3].as<uint8_t>() : nullptr,
                             .m_scales = operands[6].as<float>(),
                             .v_scales = second ? operands[7].as<float>() : nullptr,
                             .count = operands[0].Elements(),
                             .block = update.block,
                             .wide = true,
                             .scale = operands[4].as<const float>(),
                             .schedule = operands[5].as<const float>(),
                             .factors = FactorsOf(update)};
  for (int k = 0; k < (second ? 4 : 3); ++k)
    arguments.wide = arguments.wide && AllowsWide(operands[k], true);
  const int64_t block_elements = kWarpElements * (kElementThreads / kWarp);
  const LaunchShape shape = {
      .grid_x = std::min(kGridMax, DivideUp(arguments.count, block_elements)),
      .threads = kElementThreads};
  return Launch("update_int8", UpdateInt8Kernel, shape, context, arguments);
}

}  // namespace terrace::kernels::cuda
