// The optimizer's update, fused: one sweep that reads and writes each of param, m and v once. That
// of bf16 weights makes its random bits on the way: one block of Philox a pack.
//
// SPDX-License-Identifier: Apache-2.0
#include <variant>

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/math.h"

namespace terrace::kernels::cuda {
namespace {

struct UpdateArguments {
  Operand grad, param, m, v;
  int moments;  // m and v that the rule keeps
  int64_t count;
  bool wide;
  const float* scale;
  const float* schedule;
  UpdateFactors factors;
};

// Weights as they are computed.
struct Exactly {
  __device__ void Pack(int64_t, float*) const {}
  __device__ float Element(int64_t, float param) const { return param; }
};

// Weights as bf16 takes them: what is stored after that is exact.
struct Stochastically {
  RoundingPart parts[kMaxRoundingParts];
  int count;
  const int32_t* step;

  struct Found {
    PhiloxKey key;
    RoundingPlace place;
  };
  __device__ Found Find(int64_t position) const {
    for (int i = 0; i < count; ++i) {
      const RoundingPlace place = PlaceIn(parts[i], position);
      if (place.element >= 0) return {parts[i].key, place};
    }
    return {{}, {}};
  }
  __device__ float Element(int64_t position, float param) const {
    const Found found = Find(position);
    const uint32_t bits =
        found.place.element < 0
            ? 0
            : RoundingBits(found.key, static_cast<uint32_t>(*step), found.place.element);
    return RoundStochastically(param, bits);
  }
  // Of a pack that is a block of Philox the whole block, whose words are no index of registers.
  __device__ void Pack(int64_t first, float* param) const {
    static_assert(kPack == kRoundsABlock);
    const Found found = Find(first);
    const RoundingPlace& place = found.place;
    if (place.element < 0 || place.element % kRoundsABlock != 0 || place.count < kRoundsABlock) {
      for (int i = 0; i < kPack; ++i) param[i] = Element(first + i, param[i]);
      return;
    }
    const PhiloxBlock block =
        RoundingBlock(found.key, static_cast<uint32_t>(*step), place.element / kRoundsABlock);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      param[i] = RoundStochastically(param[i], RoundingBitsOf(block, i));
    }
  }
};

template <typename Rounding>
__device__ void UpdatePack(const UpdateArguments& a, const UpdateStep& step,
                           const Rounding& rounding, int64_t first) {
  float grad[kPack], param[kPack], m[kPack] = {}, v[kPack] = {};
  LoadPack(a.grad, first, grad);
  LoadPack(a.param, first, param);
  if (a.moments > 0) LoadPack(a.m, first, m);
  if (a.moments > 1) LoadPack(a.v, first, v);
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    UpdateByRule(a.factors.rule, step, grad[i], &param[i], &m[i], &v[i]);
  }
  rounding.Pack(first, param);
  StorePack(a.param, first, param);
  if (a.moments > 0) StorePack(a.m, first, m);
  if (a.moments > 1) StorePack(a.v, first, v);
}

template <typename Rounding>
__device__ void UpdateElement(const UpdateArguments& a, const UpdateStep& step,
                              const Rounding& rounding, int64_t i) {
  float param = a.param.Load(0, i);
  float m = a.moments > 0 ? a.m.Load(0, i) : 0, v = a.moments > 1 ? a.v.Load(0, i) : 0;
  UpdateByRule(a.factors.rule, step, a.grad.Load(0, i), &param, &m, &v);
  a.param.Store(0, i, rounding.Element(i, param));
  if (a.moments > 0) a.m.Store(0, i, m);
  if (a.moments > 1) a.v.Store(0, i, v);
}

template <typename Rounding>
__global__ void __launch_bounds__(kElementThreads)
    UpdateKernel(UpdateArguments a, Rounding rounding) {
  if (a.scale[3] != 0) return;  // the step is skipped
  __shared__ UpdateStep step;   // its double arithmetic once a block
  if (threadIdx.x == 0) step = MakeUpdateStep(a.factors, a.scale[0], a.schedule);
  __syncthreads();
  const int64_t packs = DivideUp(a.count, kPack);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t pack = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; pack < packs;
       pack += stride) {
    const int64_t first = pack * kPack;
    if (a.wide && first + kPack <= a.count) {
      UpdatePack(a, step, rounding, first);
      continue;
    }
    const int64_t end = first + kPack < a.count ? first + kPack : a.count;
    for (int64_t i = first; i < end; ++i) UpdateElement(a, step, rounding, i);
  }
}

UpdateArguments ArgumentsOf(const UpdateAttrs& attrs, std::span<const TensorView> operands) {
  UpdateArguments arguments = {.grad = OperandOf(operands[0]),
                               .param = OperandOf(operands[1]),
                               .m = {},
                               .v = {},
                               .moments = RowOf(attrs.rule).moments,
                               .count = operands[0].Elements(),
                               .wide = true,
                               .scale = operands[4].as<const float>(),
                               .schedule = operands[5].as<const float>(),
                               .factors = FactorsOf(attrs)};
  if (arguments.moments > 0) arguments.m = OperandOf(operands[2]);
  if (arguments.moments > 1) arguments.v = OperandOf(operands[3]);
  for (int k = 0; k < 2 + arguments.moments; ++k)
    arguments.wide = arguments.wide && AllowsWide(operands[k], true);
  return arguments;
}

}  // namespace

Status Update(const OpAttrs& attrs, std::span<const TensorView> operands, const Context& context) {
  const UpdateArguments arguments = ArgumentsOf(std::get<UpdateAttrs>(attrs), operands);
  return Launch("update", UpdateKernel<Exactly>, ElementShape(1, arguments.count), context,
                arguments, Exactly{});
}

Status UpdateStochastic(const OpAttrs& attrs, std::span<const TensorView> operands,
                        const Context& context) {
  const auto& update = std::get<UpdateAttrs>(attrs);
  const auto* const parts = update.rounding.parts.get();
  if (parts == nullptr) return {"update_stochastic: nobody said whose bits it takes"};
  if (parts->size() > kMaxRoundingParts) return {"update_stochastic: more parts than it can hold"};
  Stochastically rounding = {};
  for (const RoundingPart& part : *parts) rounding.parts[rounding.count++] = part;
  rounding.step = operands[6].as<const int32_t>();
  const UpdateArguments arguments = ArgumentsOf(update, operands);
  return Launch("update_stochastic", UpdateKernel<Stochastically>, ElementShape(1, arguments.count),
                context, arguments, rounding);
}

}  // namespace terrace::kernels::cuda
