// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/tiers/optimizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace terrace::compiler {

using kernels::Op;

namespace {

// Those of elements [begin, begin + count), which begin on a block.
Slice ScalesOf(Slice scales, int64_t block, int64_t begin, int64_t count) {
  if (scales.absent()) return scales;
  return Range(scales, begin / block, (count + block - 1) / block);
}

}  // namespace

void Optimizer::Update(const kernels::AdamwAttrs& attrs, const OptimizerState& state, Slice scale,
                       const std::string& name) {
  const Graph& graph = builder_.graph();
  const bool on_device = graph.TierOf(state.gradient) == v1::DEVICE &&
                         graph.TierOf(state.weight) == v1::DEVICE &&
                         graph.TierOf(state.adam_m) == v1::DEVICE;
  if (on_device) {
    Compute(attrs, state, state.weight, {scale, schedule_, step_}, name);
    if (!state.rounded.absent()) copies_.Round(state.weight, state.rounded, name);
    return;
  }
  const Common common = CommonOnHost(scale);
  const int64_t elements = state.weight.shape.Elements();
  // Whole pages of weights, gradients and moments, of which an element may be shorter than f32.
  const int64_t page = std::max(
      {StreamedElements(state.rounded.absent() ? state.weight.shape.dtype
                                               : state.rounded.shape.dtype),
       StreamedElements(state.gradient.shape.dtype), StreamedElements(state.adam_m.shape.dtype)});
  const int64_t chunk =
      std::max<int64_t>(1, copies_.ChunkElements(kernels::DType::kF32) / page) * page;
  for (int64_t begin = 0; begin < elements; begin += chunk) {
    const int64_t count = std::min(chunk, elements - begin);
    UpdateChunk(attrs,
                {.gradient = Range(state.gradient, begin, count),
                 .weight = Range(state.weight, begin, count),
                 .adam_m = Range(state.adam_m, begin, count),
                 .adam_v = Range(state.adam_v, begin, count),
                 .rounded = state.rounded.absent() ? Slice() : Range(state.rounded, begin, count),
                 .m_scales = ScalesOf(state.m_scales, state.block, begin, count),
                 .v_scales = ScalesOf(state.v_scales, state.block, begin, count),
                 .block = state.block},
                common, name);
  }
}

// The host updates whatever is not all on the device: bringing a chunk there costs a copy more.
void Optimizer::UpdateChunk(const kernels::AdamwAttrs& attrs, const OptimizerState& state,
                            const Common& common, const std::string& name) {
  const OptimizerState here = {.gradient = Bring(Ring::kGradient, state.gradient, name),
                               .weight = Bring(Ring::kWeight, state.weight, name),
                               .adam_m = Bring(Ring::kAdamM, state.adam_m, name),
                               .adam_v = Bring(Ring::kAdamV, state.adam_v, name),
                               .rounded = {},
                               .m_scales = Bring(Ring::kAdamMScales, state.m_scales, name),
                               .v_scales = Bring(Ring::kAdamVScales, state.v_scales, name),
                               .block = state.block};
  if (!loads_.empty())
    builder_.Copy(v1::NVME_LOAD, std::exchange(loads_, {}), absl::StrCat("load states of ", name));
  Compute(attrs, here, state.weight, common, name);
  if (!state.rounded.absent()) copies_.RoundOnHost(here.weight, state.rounded, name);
  TakeBack(here.weight, state.weight, name);
  TakeBack(here.adam_m, state.adam_m, name);
  TakeBack(here.adam_v, state.adam_v, name);
  TakeBack(here.m_scales, state.m_scales, name);
  TakeBack(here.v_scales, state.v_scales, name);
  if (!stores_.empty()) {
    builder_.Copy(v1::NVME_STORE, std::exchange(stores_, {}),
                  absl::StrCat("store states of ", name));
  }
}

void Optimizer::Compute(kernels::AdamwAttrs attrs, const OptimizerState& here, Slice home,
                        const Common& common, const std::string& name) {
  std::vector<Slice> operands = {here.gradient, here.weight,  here.adam_m,
                                 here.adam_v,   common.scale, common.schedule};
  if (here.adam_m.shape.dtype == kernels::DType::kU8) {
    attrs.rounding = {};
    attrs.block = here.block;
    operands.insert(operands.end(), {here.m_scales, here.v_scales});
    builder_.Compute(Op::kAdamwInt8, attrs, std::move(operands), absl::StrCat("adamw ", name));
    return;
  }
  if (here.weight.shape.dtype == kernels::DType::kF32) {
    attrs.rounding = {};
    builder_.Compute(Op::kAdamw, attrs, std::move(operands), absl::StrCat("adamw ", name));
    return;
  }
  const Slice root = builder_.graph().Root(home);
  attrs.rounding.buffer = root.value;  // the value's number: emit.cc knows its buffer
  attrs.rounding.first = root.offset;
  operands.push_back(common.step);
  builder_.Compute(Op::kAdamwStochastic, attrs, std::move(operands), absl::StrCat("adamw ", name));
}

Slice Optimizer::Bring(Ring ring, Slice piece, const std::string& name) {
  if (piece.absent()) return piece;
  const v1::Tier tier = builder_.graph().TierOf(piece);
  if (tier == v1::HOST) return piece;
  const Slice staging = copies_.Staging(ring, piece, name);
  const Slice here = Range(staging, 0, piece.shape.Elements());
  if (tier == v1::NVME) {
    loads_.insert(loads_.end(), {TierCopies::Padded(piece), staging});
  } else {
    builder_.Copy(v1::TO_HOST, {piece, here}, absl::StrCat("move ", name));
  }
  return here;
}

void Optimizer::TakeBack(Slice here, Slice piece, const std::string& name) {
  if (piece.absent()) return;
  const v1::Tier tier = builder_.graph().TierOf(piece);
  if (tier == v1::NVME) {
    stores_.insert(stores_.end(), {TierCopies::Padded(here), TierCopies::Padded(piece)});
  } else if (tier == v1::DEVICE) {
    builder_.Copy(v1::TO_DEVICE, {here, piece}, absl::StrCat("return ", name));
  }
}

Optimizer::Common Optimizer::CommonOnHost(Slice scale) {
  Common common;
  common.scale = OnHost(scale, "scale");
  std::vector<Node>* const divert = builder_.divert;
  if (at_start_ != nullptr) builder_.divert = at_start_;
  common.schedule = OnHost(schedule_, "schedule");
  if (!step_.absent()) common.step = OnHost(step_, "step");
  builder_.divert = divert;
  return common;
}

Slice Optimizer::OnHost(Slice device, const std::string& name) {
  const auto [known, is_new] = on_host_.try_emplace(device.value);
  if (!is_new) return known->second;
  Graph& graph = builder_.graph();
  known->second = graph.Whole(graph.Add({.name = name + ".host",
                                         .cls = v1::INPUT,
                                         .dtype = device.shape.dtype,
                                         .shape = {device.shape.Elements()},
                                         .tier = v1::HOST,
                                         .sequence = builder_.sequence()}));
  builder_.Copy(v1::TO_HOST, {device, known->second}, absl::StrCat("move ", name));
  return known->second;
}

}  // namespace terrace::compiler
