// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/state/dealt.h"

#include <map>
#include <tuple>
#include <utility>

#include "coordinator/layout/dealing.h"

namespace terrace::compiler {
namespace {

// What is equal of parameters that one instruction can update, each on its own rank.
using Kind = std::tuple<TensorRole, std::vector<std::pair<int64_t, int64_t>>, double, double,
                        kernels::OptimizerRule, kernels::DType, int>;

Kind KindOf(const Parameter& parameter, bool by_chunk, kernels::DType reads) {
  std::vector<std::pair<int64_t, int64_t>> shapes;
  for (const Part& part : parameter.parts) shapes.emplace_back(part.rows, part.columns);
  const TensorUpdate& update = parameter.update;
  return {parameter.first().role,        std::move(shapes), update.lr_scale,
          update.weight_decay,           update.rule,       reads,
          by_chunk ? parameter.chunk : 0};
}

}  // namespace

std::vector<Dealt> DealParameters(const std::vector<Parameter>& parameters, int64_t shards,
                                  bool by_chunk,
                                  absl::FunctionRef<kernels::DType(const Parameter&)> reads) {
  std::vector<Dealt> dealt(parameters.size());
  std::map<Kind, std::vector<int>> kinds;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    dealt[i].whole =
        !parameter.update.frozen && UpdatesWholes(kernels::RowOf(parameter.update.rule));
    if (dealt[i].whole && parameter.layer != kNone && parameter.is_matrix())
      kinds[KindOf(parameter, by_chunk, reads(parameter))].push_back(static_cast<int>(i));
  }
  for (const auto& [kind, members] : kinds) {
    const auto count = static_cast<int64_t>(members.size());
    for (int64_t m = 0; m < count - DealOf(count, shards).kept; ++m) {
      dealt[members[m]].leader = members[m / shards * shards];
      dealt[members[m]].shard = m % shards;
    }
  }
  return dealt;
}

}  // namespace terrace::compiler
