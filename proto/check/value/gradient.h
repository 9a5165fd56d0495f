// What those who rely on the content of bytes ask: the optimizer of its gradient, norms of what
// they count, GRAD_SCALE of the norm and the loss. Internal to proto/check.
//
// A gradient's factor is made from squares that count it. Where it clips, all optimizer ops take
// the one factor that STEP_STATS hands out, whose norm is that of all gradients; where it does not,
// the squares only say whether the gradient is finite, and may be of some of them alone. Those of
// STEP_STATS always count every gradient of the stage, once over all ranks.
//
// Borrows everything it is given. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "proto/check/instruction/instructions.h"
#include "proto/check/value/flow.h"
#include "proto/check/value/train.h"
#include "proto/check/value/weights.h"
#include "proto/v1/program.pb.h"

namespace terrace::check {

// Why nobody may rely on a value that an instruction of the sequence made unusable.
std::string SpoiledText(const CheckedSequence& sequence, const Value& value);

class Gradients {
 public:
  // `shared` receives the weights whose gradient was summed over stages.
  Gradients(const v1::Program& program, const StateIndex& state, const CheckedSequence& train,
            const Flow& flow, std::map<std::string, StageFacts::Shared>* shared);

  // Instruction i, before the flow has passed it.
  absl::Status Check(int i);
  // Behind all other checks of instruction i: no other optimizer op has taken its gradient.
  absl::Status CheckUnused(int i);
  // Behind all instructions.
  absl::Status CheckEnd() const;

 private:
  using Text = absl::FunctionRef<std::string()>;  // of what is refused, if it is

  absl::Status CheckOptimizer(int i);
  // The first operand, a gradient, has the type that its buffer holds; staging holds bytes.
  absl::Status CheckType(int i) const;
  void ForgetWritten(const CheckedInstruction& instruction);
  // Where the weights of a gradient lie.
  struct WeightPlace {
    uint32_t buffer = 0;
    int64_t moved = 0;  // elements, from one of the gradient to that of the weight
    int64_t element_bytes = 0;
    int64_t gradient_bytes = 0;  // of an element
  };
  absl::Status CheckGradient(int i, const ByteRange& bytes, const Value& value,
                             const WeightPlace& place);
  absl::Status CheckShards(int i, const ByteRange& bytes, const Value& value,
                           const WeightPlace& place);
  absl::Status CheckLink(int i, int64_t byte, const Value& value, uint32_t buffer, int64_t moved);
  bool IsBeforePositions(const v1::StateRange& weight, const Value& value, const WeightPlace& place,
                         int64_t end) const;
  absl::Status CheckFor(int i, int64_t byte, const v1::StateRange& weight, const Value& value,
                        int squared);
  absl::Status CheckShared(int i, const v1::StateRange& weight, const Value& value, int squared,
                           Text what);
  absl::Status CheckNormInput(int i);
  absl::Status NoteFactor(int i);
  absl::Status CheckSquares(int i);
  absl::Status NoteUse(int i);
  absl::Status CheckCounted(int i, int squared, Text what);
  absl::Status CheckStatistics(int i);
  int FactorAt(int i, int operand) const;
  absl::Status CheckTerm(int i, const SquareTerm& term, const Value& squares);
  absl::Status CheckLoss(int i);
  absl::Status CheckKind(int i, int operand, Value::Kind kind);
  absl::Status CheckFactor(int i, int operand);
  absl::Status CheckComplete(const Value& value, Text what) const;
  std::string What(int i, int operand, int64_t byte) const;
  std::string WhereIs(int i) const;

  const v1::Program& program_;
  const StateIndex& state_;
  const CheckedSequence& train_;
  const Flow& flow_;
  std::map<std::string, StageFacts::Shared>* const shared_;
  const bool trains_;                     // any weight of this stage
  const Marks all_micro_batches_;         // each once
  std::vector<ByteMap> used_;             // by buffer: the optimizer op that took what is there
  std::map<int, double> shared_squares_;  // by squared norm: the part of the squares it counts

  // What one GRAD_SCALE made.
  struct Factor {
    std::set<int> counts;  // instructions that took the squared norms
    bool clips = false;
    absl::Status is_norm;  // whether the squares are those of each element once
  };
  std::map<int, Factor> factors_;  // by GRAD_SCALE
  // Optimizer ops, by the squared norm that counts their gradient and by the factor they take.
  std::map<int, int> by_squared_, by_factor_;
  int handed_out_ = -1;  // STEP_STATS
  int statistics_ = -1;  // the factor that it hands out
};

// The operand of output instruction i is the same on all ranks of the stage.
absl::Status CheckSameEverywhere(const v1::Program& program, const CheckedSequence& sequence,
                                 const Flow& flow, int i);

}  // namespace terrace::check
