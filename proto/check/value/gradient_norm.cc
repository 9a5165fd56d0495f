// What is made of gradients before they are used: their norm, which each element enters once, and
// beside it the loss.
//
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "proto/check/instruction/refuse.h"
#include "proto/check/value/gradient.h"
#include "proto/program/grid.h"

namespace terrace::check {
namespace {

// How far the factors of squared norms, which are f32, may be from exact.
constexpr double kTolerance = 1e-5;

bool CoversAllStages(const v1::Program& program, int group) {
  if (group < 0) return false;
  const v1::Group& g = program.groups(group);
  return g.stages_size() == 0 || g.stages_size() == static_cast<int>(program.stages());
}

// Stages without the loss add zeros to it.
bool IsLoss(const v1::Program& program, const Value& value) {
  const bool pairs = program.rules().pairs() && !value.foreign;
  return value.kind == (pairs ? Value::kPairLoss : Value::kNumbers);
}

// Why a value that should be the same on all ranks is not; empty when it is.
std::string DifferenceText(const Values& values, const Value& value) {
  AxisMask axes = value.varies | value.parts;
  if (value.same_block < values.tensor()) axes |= Bit(v1::TENSOR);
  return axes == 0 ? ""
                   : absl::StrCat("differs over ", AxesText(axes), ": it was not summed over that");
}

}  // namespace

absl::Status Gradients::CheckNormInput(int i) {
  absl::Status status = CheckType(i);
  const auto check = [&](const ByteRange& bytes, const Value& value) {
    if (!status.ok()) return;
    if (value.spoiled_by >= 0) {
      status = Refuse(What(i, 0, bytes.begin), SpoiledText(train_, value));
    } else if (value.varies != 0) {
      status = Refuse(What(i, 0, bytes.begin), "which differs over ", AxesText(value.varies),
                      ": it was not summed over that");
    }
  };
  flow_.ForEach(*train_.instructions[i].Find(0), [&](const ByteRange& bytes, const Value& value) {
    if (status.ok() && value.squared >= 0) {
      status =
          Refuse(What(i, 0, bytes.begin), "which ", WhereIs(value.squared), " has counted already");
    }
    if (value.scatter < 0) return check(bytes, value);
    const Scatter& scatter = flow_.values().scatter(value.scatter);
    scatter.content.ForEach({0, scatter.shards * scatter.shard_elements},
                            [&](const ByteRange&, int number) {
                              if (number != ByteMap::kNone) check(bytes, flow_.values()[number]);
                            });
  });
  return status;
}

absl::Status Gradients::CheckSquares(int i) {
  absl::Status status;
  const Access& squares = *train_.instructions[i].Find(0);
  flow_.ForEach(squares, [&](const ByteRange& bytes, const Value& value) {
    if (!status.ok() || (value.zero && trains_)) return;
    // A stage that trains nothing has no squares, and takes the sum of the others'.
    const bool of_others = value.foreign && trains_;
    const auto what = [&] { return What(i, 0, bytes.begin); };
    if (value.spoiled_by >= 0) {
      status = Refuse(what, SpoiledText(train_, value));
    } else if (value.kind != Value::kSquares || of_others) {
      status = Refuse(what, "which is no sum of squares");
    } else if (program_.stages() > 1 && !CoversAllStages(program_, value.pipeline_group)) {
      status = Refuse(what, "squares that were not summed over PIPELINE, all stages");
    } else {
      for (const SquareTerm& term : flow_.values().squares(value.squares)) {
        if (status.ok()) status = CheckTerm(i, term, value);
      }
    }
  });
  return status;
}

// The squares of every element enter the sum over all ranks once: summed over the axes where ranks
// hold different elements, and scaled down by the number of ranks in the sum that hold the same.
absl::Status Gradients::CheckTerm(int i, const SquareTerm& term, const Value& squares) {
  const uint32_t tensor = flow_.values().tensor();
  AxisMask needed = term.parts;
  if (term.same_block < tensor) needed |= Bit(v1::TENSOR);
  const auto what = [&] {
    return absl::StrCat(
        WhereIs(i), ": relies on the squares that ", WhereIs(term.instruction), " counts of ",
        BufferText(program_, train_.instructions[term.instruction].Find(0)->buffer), ", ");
  };
  if ((needed & ~squares.summed) != 0) {
    return Refuse(what, "which differ over ", AxesText(needed & ~squares.summed),
                  ": they were not summed over that");
  }
  double times = term.scale;
  for (v1::Axis axis : {v1::CONTEXT, v1::DATA_SHARD, v1::DATA_REPLICA}) {
    if ((squares.summed & ~term.parts & Bit(axis)) != 0) times *= AxisSize(program_.grid(), axis);
  }
  if ((squares.summed & ~term.parts & Bit(v1::TENSOR)) != 0) times *= term.same_block;
  if (term.pipeline_group >= 0) {
    const auto [known, is_new] = shared_squares_.emplace(term.instruction, times);
    if (known->second == times) return absl::OkStatus();
  } else if (std::abs(times - 1) <= kTolerance) {
    return absl::OkStatus();
  }
  return Refuse(what, "and sums over ", AxesText(squares.summed), " count them ", times,
                " times, must be once");
}

absl::Status Gradients::NoteFactor(int i) {
  Factor factor;
  factor.clips = std::get<kernels::ClipAttrs>(train_.instructions[i].op->attrs).clip_grad_norm > 0;
  factor.is_norm = CheckSquares(i);
  if (factor.clips) RETURN_IF_ERROR(factor.is_norm);
  flow_.ForEach(*train_.instructions[i].Find(0), [&](const ByteRange&, const Value& value) {
    if (value.kind != Value::kSquares || value.spoiled_by >= 0) return;
    for (const SquareTerm& term : flow_.values().squares(value.squares)) {
      factor.counts.insert(term.instruction);
    }
  });
  factors_[i] = std::move(factor);
  return absl::OkStatus();
}

// -1 where it is not one alone.
int Gradients::FactorAt(int i, int operand) const {
  std::set<int> made_by;
  flow_.ForEach(*train_.instructions[i].Find(operand),
                [&](const ByteRange&, const Value& value) { made_by.insert(value.squared); });
  const bool one = made_by.size() == 1 && factors_.contains(*made_by.begin());
  return one ? *made_by.begin() : -1;
}

absl::Status Gradients::NoteUse(int i) {
  const int scale = ScaleOperand(train_.instructions[i].op->op);
  const int factor = FactorAt(i, scale);
  if (factor < 0) {
    return Refuse(What(i, scale, train_.instructions[i].Find(scale)->offset),
                  "which is not what one grad_scale made");
  }
  by_factor_.emplace(factor, i);
  return absl::OkStatus();
}

absl::Status Gradients::CheckCounted(int i, int squared, Text what) {
  const int factor = FactorAt(i, ScaleOperand(train_.instructions[i].op->op));
  by_squared_.emplace(squared, i);
  if (factors_.at(factor).counts.contains(squared)) return absl::OkStatus();
  return Refuse(what, "whose squares, which ", WhereIs(squared),
                " counts, are not among those that ", WhereIs(factor), " made the factor from");
}

absl::Status Gradients::CheckStatistics(int i) {
  RETURN_IF_ERROR(CheckKind(i, 0, Value::kScale));
  const int factor = FactorAt(i, 0);
  if (factor < 0) {
    return Refuse(What(i, 0, train_.instructions[i].Find(0)->offset),
                  "which is not what one grad_scale made");
  }
  handed_out_ = i, statistics_ = factor;
  return factors_.at(factor).is_norm;
}

absl::Status Gradients::CheckEnd() const {
  for (const auto& [factor, by] : by_factor_) {
    const bool same = factor == by_factor_.begin()->first;
    if (factors_.at(factor).clips && !(same && (statistics_ < 0 || statistics_ == factor))) {
      return Refuse(WhereIs(by), ": takes the factor of ", WhereIs(factor),
                    ", which clips by another norm than ",
                    WhereIs(same ? statistics_ : by_factor_.begin()->first));
    }
  }
  if (handed_out_ < 0) return absl::OkStatus();
  for (const auto& [squared, by] : by_squared_) {
    if (factors_.at(statistics_).counts.contains(squared)) continue;
    return Refuse(WhereIs(handed_out_), ": hands out a norm without the gradient of ", WhereIs(by));
  }
  return absl::OkStatus();
}

absl::Status Gradients::CheckLoss(int i) {
  absl::Status status;
  flow_.ForEach(*train_.instructions[i].Find(1), [&](const ByteRange& bytes, const Value& value) {
    if (!status.ok()) return;
    const auto what = [&] {
      return absl::StrCat(What(i, 1, bytes.begin), "the total of losses, ");
    };
    const std::string difference = DifferenceText(flow_.values(), value);
    if (value.spoiled_by >= 0) {
      status = Refuse(what, SpoiledText(train_, value));
    } else if (program_.stages() > 1 && !CoversAllStages(program_, value.pipeline_group)) {
      status = Refuse(what, "which was not summed over PIPELINE, all stages");
    } else if (value.zero || !IsLoss(program_, value) || value.scatter >= 0) {
      status = Refuse(
          what, program_.rules().pairs() ? "which holds no loss of pairs" : "which holds no loss");
    } else if (!difference.empty()) {
      status = Refuse(what, "which ", difference);
    } else if (!value.foreign) {
      status = CheckComplete(value, what);
    }
  });
  return status;
}

absl::Status CheckSameEverywhere(const v1::Program& program, const CheckedSequence& sequence,
                                 const Flow& flow, int i) {
  absl::Status status;
  const Access& access = *sequence.instructions[i].Find(0);
  flow.ForEach(access, [&](const ByteRange& bytes, const Value& value) {
    if (!status.ok()) return;
    const std::string what = absl::StrCat(
        Where(*sequence.sequence, sequence.sequence->instructions(i)), ": hands out byte ",
        bytes.begin, " of ", BufferText(program, access.buffer), ", ");
    const std::string difference = DifferenceText(flow.values(), value);
    if (value.spoiled_by >= 0) {
      status = Refuse(what, SpoiledText(sequence, value));
    } else if (!difference.empty()) {
      status = Refuse(what, "which ", difference);
    } else if (program.rules().pairs() && !value.zero && !IsLoss(program, value)) {
      status = Refuse(what, "which is no sum over pairs");
    }
  });
  return status;
}

}  // namespace terrace::check
