// SPDX-License-Identifier: Apache-2.0
#include "proto/check/value/announced.h"

#include <algorithm>
#include <cmath>

#include "base/status_macros.h"
#include "base/strings.h"
#include "kernels/format.h"
#include "kernels/optimizer_rule.h"
#include "proto/check/instruction/refuse.h"
#include "proto/check/value/state.h"
#include "proto/program/announced_weights.h"
#include "proto/program/grid.h"
#include "proto/program/moments.h"
#include "proto/program/op_codec.h"
#include "proto/program/state_layout.h"

namespace terrace::check {
namespace {

// What rests as codes is frozen, and so is every part of it.
absl::Status CheckBlocks(const v1::Initializer& init,
                         const std::map<std::string, int64_t>& weights) {
  const bool none = init.blocks() == v1::BLOCK_FORMAT_UNSPECIFIED && init.block() == 0;
  if (none) return absl::OkStatus();
  if (CodesOf(init).row == nullptr || !init.frozen()) {
    return Refuse("initializer of '", init.tensor(), "': ", v1::BlockFormat_Name(init.blocks()),
                  " in blocks of ", init.block(),
                  " must be a format of codes, blocks a power of two from ", kernels::kLeastBlock,
                  " to ", kernels::kInt8Block, " that divides the rows of a frozen matrix");
  }
  if (weights.contains(init.tensor()) == weights.contains(CodeScalesName(init.tensor())))
    return absl::OkStatus();
  return Refuse("initializer of '", init.tensor(), "': codes and scales must be on one stage");
}

absl::Status CheckInitializers(const v1::Program& program,
                               const std::map<std::string, int64_t>& weights) {
  std::set<std::string> seen;
  for (const v1::Initializer& init : program.initializers()) {
    const auto weight = weights.find(init.tensor());
    if (weight == weights.end() && program.stages() == 1)
      return Refuse("initializer of '", init.tensor(), "': there is no such weight");
    if (!seen.insert(init.tensor()).second)
      return Refuse("initializer of '", init.tensor(), "': is there twice");
    RETURN_IF_ERROR(CheckBlocks(init, weights));
    const CodeFormat codes = CodesOf(init);
    const int64_t packed = codes.row == nullptr ? 1 : codes.row->packed;
    if (weight != weights.end() && Elements(init.shape()) != weight->second * packed) {
      return Refuse("initializer of '", init.tensor(),
                    "': its shape has other elements than the weight's ", weight->second);
    }
    if (!v1::OptimizerRule_IsValid(init.optimizer())) {
      return Refuse("initializer of '", init.tensor(), "': optimizer ", init.optimizer(),
                    " must be one of the rules in kernels/optimizer_rule.h");
    }
    const bool known = init.kind() == v1::Initializer::CONSTANT ||
                       init.kind() == v1::Initializer::NORMAL ||
                       init.kind() == v1::Initializer::UNIFORM;
    if (!known || !std::isfinite(init.mean()) || !std::isfinite(init.stddev()) ||
        init.stddev() < 0) {
      return Refuse("initializer of '", init.tensor(), "': kind, mean or stddev is not valid");
    }
  }
  return absl::OkStatus();
}

// What checkpoints hold of residuals follows from the initializers, too.
absl::Status CheckResiduals(const v1::Program& program,
                            const std::map<std::string, int64_t>& weights) {
  std::map<std::string, const v1::StateRange*> held;
  for (const v1::StateRange& range : program.state()) {
    if (range.kind() == v1::RESIDUAL) held[range.tensor()] = &range;
  }
  const int64_t ranks = ShardCount(program.grid());
  for (const v1::Initializer& init : program.initializers()) {
    const auto residual = held.find(init.tensor());
    const bool is_held = residual != held.end();
    if (init.residual() == v1::DTYPE_UNSPECIFIED && !is_held) continue;
    const std::string where = absl::StrCat("initializer of '", init.tensor(), "'");
    if (init.residual() != v1::F32 && init.residual() != v1::BF16) {
      return Refuse(where, ": type ", v1::DType_Name(init.residual()),
                    " of its residual must be F32 or BF16");
    }
    if (init.shape_size() < 2)
      return Refuse(where, ": only a matrix has a residual, it has ", init.shape_size(),
                    " dimensions");
    if (!is_held && weights.contains(init.tensor()))
      return Refuse(where, ": the state has no residual of it");
    if (!is_held) continue;
    const v1::StateRange& range = *residual->second;
    if (range.dtype() != init.residual()) {
      return Refuse(RangeText(range), ": type ", v1::DType_Name(range.dtype()),
                    " is not what its initializer says");
    }
    const bool same_rows = range.shape(0) == init.shape(0) * ranks;
    if (!same_rows || !std::equal(range.shape().begin() + 1, range.shape().end(),
                                  init.shape().begin() + 1, init.shape().end())) {
      return Refuse(RangeText(range), ": its shape is not that of its initializer times the ",
                    ranks, " ranks of CONTEXT and DATA_SHARD");
    }
    held.erase(residual);
  }
  if (held.empty()) return absl::OkStatus();
  return Refuse(RangeText(*held.begin()->second), ": no initializer tells of it");
}

v1::DType F32Where0(v1::DType type) { return type == v1::DTYPE_UNSPECIFIED ? v1::F32 : type; }

// Weights have the type that checkpoints announce, and of what is frozen there is nothing else.
absl::Status CheckWeightTypes(const v1::Program& program) {
  const std::map<std::string, AnnouncedWeight> announced = AnnouncedByName(program);
  for (const v1::StateRange& range : program.state()) {
    const auto found = announced.find(range.tensor());
    if (found == announced.end()) continue;
    const AnnouncedWeight& weight = found->second;
    if (range.kind() == v1::WEIGHT) {
      const v1::DType type = EncodeDType(weight.dtype);
      if (range.dtype() != type) {
        return Refuse(RangeText(range), ": type ", v1::DType_Name(range.dtype()),
                      " is not what its initializer says, ", v1::DType_Name(type));
      }
      const bool numbers = weight.part == AnnouncedWeight::Part::kNumbers;
      if (numbers || std::equal(range.shape().begin(), range.shape().end(), weight.shape.begin(),
                                weight.shape.end())) {
        continue;
      }
      return Refuse(RangeText(range),
                    ": its shape is not that of the blocks that its initializer "
                    "says");
    }
    if (weight.initializer->frozen())
      return Refuse(RangeText(range), ": its initializer says that the tensor is frozen");
  }
  return absl::OkStatus();
}

// Of scales what they are the scales of.
v1::StateKind MomentOf(v1::StateKind kind) {
  if (kind == v1::FIRST_MOMENT_SCALES) return v1::FIRST_MOMENT;
  return kind == v1::SECOND_MOMENT_SCALES ? v1::SECOND_MOMENT : kind;
}

// That the rule of the range's tensor keeps it.
absl::Status CheckKept(const v1::StateRange& range, const std::vector<int64_t>& shape,
                       const TensorRules& rules) {
  const kernels::OptimizerRow& rule = rules.Of(range.tensor());
  const std::vector<v1::StateKind> kinds = rules.Moments(range.tensor(), shape.size() >= 2);
  const bool kept = std::find(kinds.begin(), kinds.end(), MomentOf(range.kind())) != kinds.end();
  const bool of_its_size = !rule.factored && !IsFactor(range.kind());
  if (!kept && of_its_size) {
    return Refuse(RangeText(range), ": the rule ", Absl(rule.name), " keeps ", rule.moments,
                  rule.moments == 1 ? " moment" : " moments");
  }
  if (!kept || (rule.factored && MomentOf(range.kind()) != range.kind()))
    return Refuse(RangeText(range), ": the rule ", Absl(rule.name), " keeps no such state of it");
  if (!IsFactor(range.kind())) return absl::OkStatus();
  if (range.dtype() != v1::F32)
    return Refuse(RangeText(range), ": type ", v1::DType_Name(range.dtype()), " must be F32");
  const std::vector<int64_t> expected = MomentShape(range.kind(), shape);
  if (std::equal(expected.begin(), expected.end(), range.shape().begin(), range.shape().end()))
    return absl::OkStatus();
  return Refuse(RangeText(range), ": must have ", expected[0], " elements, one a ",
                range.kind() == v1::ROW_MOMENT || range.kind() == v1::ROW_ERROR ? "row" : "column",
                " of its tensor");
}

// Moments are those that the rule keeps. They rest in f32, bf16 or codes; what checkpoints hold
// follows from the initializers, which so must say the same.
absl::Status CheckMomentTypes(const v1::Program& program) {
  const int64_t block = program.rules().moment_block();
  const bool power = block > 0 && (block & (block - 1)) == 0;
  if (block != 0 && !(power && block >= kernels::kLeastBlock && block <= kernels::kInt8Block)) {
    return Refuse("rules: moment_block ", block, " must be 0 or a power of two from ",
                  kernels::kLeastBlock, " to ", kernels::kInt8Block);
  }
  std::map<std::string, v1::DType> types;
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const v1::Initializer& init : program.initializers()) {
    types[init.tensor()] = F32Where0(init.moments());
    shapes[init.tensor()] = {init.shape().begin(), init.shape().end()};
  }
  const TensorRules rules(program);
  for (const v1::StateRange& range : program.state()) {
    if (range.kind() == v1::WEIGHT || range.kind() == v1::RESIDUAL) continue;
    RETURN_IF_ERROR(CheckKept(range, shapes[range.tensor()], rules));
    if (range.kind() != v1::FIRST_MOMENT && range.kind() != v1::SECOND_MOMENT) continue;
    const auto type = types.find(range.tensor());
    const bool known = range.dtype() == v1::F32 || range.dtype() == v1::BF16 ||
                       (range.dtype() == v1::U8 && block > 0);
    if (known && (type == types.end() || type->second == range.dtype())) continue;
    return Refuse(RangeText(range), ": type ", v1::DType_Name(range.dtype()),
                  known ? " is not what its initializer says"
                        : " must be F32, BF16 or, with rules.moment_block, U8");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckAnnounced(const v1::Program& program,
                            const std::map<std::string, int64_t>& weights) {
  RETURN_IF_ERROR(CheckInitializers(program, weights));
  RETURN_IF_ERROR(CheckWeightTypes(program));
  RETURN_IF_ERROR(CheckMomentTypes(program));
  return CheckResiduals(program, weights);
}

std::set<std::string> FrozenTensors(const v1::Program& program) {
  std::set<std::string> frozen;
  for (const v1::Initializer& init : program.initializers()) {
    if (!init.frozen()) continue;
    frozen.insert(init.tensor());
    if (CodesOf(init).row != nullptr) frozen.insert(CodeScalesName(init.tensor()));
  }
  return frozen;
}

}  // namespace terrace::check
