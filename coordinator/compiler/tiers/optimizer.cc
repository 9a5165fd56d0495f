// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/tiers/optimizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace terrace::compiler {

using kernels::Op;

namespace {

constexpr Ring kMomentRings[] = {Ring::kFirstMoment, Ring::kSecondMoment};
constexpr Ring kScalesRings[] = {Ring::kFirstMomentScales, Ring::kSecondMomentScales};

// Those of elements [begin, begin + count), which begin on a block.
Slice ScalesOf(Slice scales, int64_t block, int64_t begin, int64_t count) {
  if (scales.absent()) return scales;
  return Range(scales, begin / block, (count + block - 1) / block);
}

// Absent where the rule keeps fewer.
MomentSlice MomentOf(const OptimizerState& state, size_t moment) {
  return moment < state.moments.size() ? state.moments[moment] : MomentSlice();
}

}  // namespace

bool Optimizer::IsOnDevice(const OptimizerState& state) const {
  const Graph& graph = builder_.graph();
  return graph.TierOf(state.gradient) == v1::DEVICE && graph.TierOf(state.weight) == v1::DEVICE &&
         std::all_of(state.moments.begin(), state.moments.end(), [&](const MomentSlice& moment) {
           return moment.numbers.absent() || graph.TierOf(moment.numbers) == v1::DEVICE;
         });
}

void Optimizer::Update(const kernels::UpdateAttrs& attrs, const OptimizerState& state, Slice scale,
                       const std::string& name) {
  if (IsOnDevice(state)) {
    Compute(attrs, state, state.weight, {scale, schedule_, step_}, name);
    if (!state.rounded.absent()) copies_.Round(state.weight, state.rounded, name);
    return;
  }
  const Common common = CommonOnHost(scale);
  const int64_t elements = state.weight.shape.Elements();
  // Whole pages of weights, gradients and moments, of which an element may be shorter than f32.
  const Slice& weight = state.rounded.absent() ? state.weight : state.rounded;
  int64_t page =
      std::max(StreamedElements(weight.shape.dtype), StreamedElements(state.gradient.shape.dtype));
  for (const MomentSlice& moment : state.moments)
    page = std::max(page, StreamedElements(moment.numbers.shape.dtype));
  const int64_t chunk =
      std::max<int64_t>(1, copies_.ChunkElements(kernels::DType::kF32) / page) * page;
  for (int64_t begin = 0; begin < elements; begin += chunk) {
    const int64_t count = std::min(chunk, elements - begin);
    OptimizerState piece = {
        .gradient = Range(state.gradient, begin, count),
        .weight = Range(state.weight, begin, count),
        .rounded = state.rounded.absent() ? Slice() : Range(state.rounded, begin, count),
        .moments = {},
        .block = state.block};
    for (const MomentSlice& moment : state.moments) {
      piece.moments.push_back({Range(moment.numbers, begin, count),
                               ScalesOf(moment.scales, state.block, begin, count)});
    }
    UpdateChunk(attrs, piece, common, name);
  }
}

// The host updates whatever is not all on the device: bringing a chunk there costs a copy more.
void Optimizer::UpdateChunk(const kernels::UpdateAttrs& attrs, const OptimizerState& state,
                            const Common& common, const std::string& name) {
  OptimizerState here = {.gradient = Bring(Ring::kGradient, state.gradient, name),
                         .weight = Bring(Ring::kWeight, state.weight, name),
                         .rounded = {},
                         .moments = {},
                         .block = state.block};
  here.moments.resize(state.moments.size());
  for (size_t i = 0; i < state.moments.size(); ++i)
    here.moments[i].numbers = Bring(kMomentRings[i], state.moments[i].numbers, name);
  for (size_t i = 0; i < state.moments.size(); ++i)
    here.moments[i].scales = Bring(kScalesRings[i], state.moments[i].scales, name);
  if (!loads_.empty())
    builder_.Copy(v1::NVME_LOAD, std::exchange(loads_, {}), absl::StrCat("load states of ", name));
  Compute(attrs, here, state.weight, common, name);
  if (!state.rounded.absent()) copies_.RoundOnHost(here.weight, state.rounded, name);
  TakeBack(here.weight, state.weight, name);
  for (size_t i = 0; i < state.moments.size(); ++i)
    TakeBack(here.moments[i].numbers, state.moments[i].numbers, name);
  for (size_t i = 0; i < state.moments.size(); ++i)
    TakeBack(here.moments[i].scales, state.moments[i].scales, name);
  if (!stores_.empty()) {
    builder_.Copy(v1::NVME_STORE, std::exchange(stores_, {}),
                  absl::StrCat("store states of ", name));
  }
}

void Optimizer::Compute(kernels::UpdateAttrs attrs, const OptimizerState& here, Slice home,
                        const Common& common, const std::string& name) {
  std::vector<Slice> operands = {here.gradient, here.weight};
  for (int i = 0; i < kernels::kMomentsMax; ++i) operands.push_back(MomentOf(here, i).numbers);
  const kernels::OptimizerRow& rule = kernels::RowOf(attrs.rule);
  if (rule.factored) operands.insert(operands.end(), here.factors.begin(), here.factors.end());
  operands.insert(operands.end(), {common.scale, common.schedule});
  const std::string text = absl::StrCat(std::string(rule.name), " ", name);
  if (rule.whole_matrix || rule.factored) {
    attrs.rounding = {};
    builder_.Compute(rule.factored ? Op::kUpdateFactored : Op::kUpdateMatrix, attrs,
                     std::move(operands), text);
    return;
  }
  if (MomentOf(here, 0).numbers.shape.dtype == kernels::DType::kU8) {
    attrs.rounding = {};
    attrs.block = here.block;
    for (int i = 0; i < kernels::kMomentsMax; ++i) operands.push_back(MomentOf(here, i).scales);
    builder_.Compute(Op::kUpdateInt8, attrs, std::move(operands), text);
    return;
  }
  if (here.weight.shape.dtype == kernels::DType::kF32) {
    attrs.rounding = {};
    builder_.Compute(Op::kUpdate, attrs, std::move(operands), text);
    return;
  }
  const Slice root = builder_.graph().Root(home);
  attrs.rounding.buffer = root.value;  // the value's number: emit.cc knows its buffer
  attrs.rounding.first = root.offset;
  operands.push_back(common.step);
  builder_.Compute(Op::kUpdateStochastic, attrs, std::move(operands), text);
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
