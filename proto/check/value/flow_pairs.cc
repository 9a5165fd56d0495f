// What Flow knows of pairs of sequences (StepRules.pairs): which values depend on trained weights,
// and what became of the losses of tokens. preference_loss compares the losses of the model with
// those of its reference, which no trained weight has touched; what it makes of them are the loss
// of the step and the weights of the gradients.
//
// What comes from another stage is taken to be of the model and of the reference in turns; that it
// is so is what the stages are asked together (joint.h).
//
// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "kernels/op.h"
#include "proto/check/instruction/refuse.h"
#include "proto/check/value/flow.h"
#include "proto/program/sequences.h"

namespace terrace::check {
namespace {

using kernels::Op;

// Operands in kernels/op.h.
constexpr int kHeadLosses = 4, kEntropyLosses = 3, kHeadWeights = 7, kEntropyWeights = 4;
constexpr int kOwnLosses = 0, kReferenceLosses = 1, kPairWeights = 2, kPairStats = 3, kMargins = 4;

}  // namespace

bool Flow::AllOf(const Access& access, Value::Kind kind) const {
  bool all = true;
  ForEach(access, [&](const ByteRange&, const Value& value) {
    all = all && (value.kind == kind || value.spoiled_by >= 0);
  });
  return all;
}

bool Flow::AnyTrained(const Access& access) const {
  bool any = false;
  ForEach(access, [&](const ByteRange&, const Value& value) { any = any || value.trained; });
  return any;
}

// Why the instruction makes nonsense of pairs; empty where it does not.
std::string Flow::PairProblem(int i) const {
  const CheckedInstruction& instruction = sequence_->instructions[i];
  const DecodedOp& op = *instruction.op;
  if (op.op == Op::kPreferenceLoss) {
    const int64_t length = LengthOf(program_.rules(), *sequence_->sequence);
    if (!pairs_) return "takes two sequences for a pair, which rules.pairs does not say";
    if (std::get<kernels::PreferenceAttrs>(op.attrs).sequence != length)
      return absl::StrCat("takes something else for pairs of sequences of ", length, " tokens");
    for (const int operand : {kOwnLosses, kReferenceLosses}) {
      if (!AllOf(At(i, operand), Value::kLosses))
        return absl::StrCat("takes something else for the losses of tokens in its '",
                            Absl(kernels::OperandName(op.op, operand)), "'");
    }
    if (AnyTrained(At(i, kReferenceLosses)))
      return "takes for its reference what trained weights have changed";
    if (!AnyTrained(At(i, kOwnLosses))) return "compares losses that no trained weight changes";
    return "";
  }
  const bool head = op.op == Op::kLmHeadLossGrad;
  if (!head && op.op != Op::kCrossEntropyGrad) return "";
  const Access* const weights = instruction.Find(head ? kHeadWeights : kEntropyWeights);
  if ((weights != nullptr) != pairs_) {
    return pairs_ ? "has no weights, which the loss of pairs gives each token"
                  : "weighs tokens, which rules.pairs does not say";
  }
  if (weights != nullptr && !AllOf(*weights, Value::kPairWeights))
    return "weighs tokens by what no preference_loss made";
  return "";
}

// What the instruction writes into one of its operands, of which `made` is known otherwise.
Value Flow::OfPairs(int i, const Access& access, Value made) const {
  const CheckedInstruction& instruction = sequence_->instructions[i];
  if (made.spoiled_by >= 0 || !instruction.op.has_value()) return made;
  const Op op = instruction.op->op;
  if ((op == Op::kLmHeadLoss && access.operand == kHeadLosses) ||
      (op == Op::kCrossEntropyLoss && access.operand == kEntropyLosses)) {
    made.kind = Value::kLosses;
  } else if (op == Op::kPreferenceLoss && access.operand == kPairWeights) {
    made.kind = Value::kPairWeights;
  } else if (op == Op::kPreferenceLoss &&
             (access.operand == kPairStats || access.operand == kMargins)) {
    made.kind = Value::kPairLoss;
  }
  return made;
}

// Notes a transfer of a forward pass. `trained`: of what is sent; null: it is received. Returns
// whether it is taken to depend on trained weights.
bool Flow::NoteTransfer(int i, const bool* trained) {
  const v1::Instruction& instruction = sequence_->sequence->instructions(i);
  if (!pairs_ || instruction.phase() != v1::FORWARD) return pairs_;
  const uint32_t own = program_.stage(), peer = instruction.transfer().peer_stage();
  const bool sends = trained != nullptr;
  PairTransfers& transfers = sends ? sent_ : received_;
  std::vector<bool>& passed = transfers[{instruction.transfer().group(), sends ? own : peer,
                                         sends ? peer : own, instruction.micro_batch()}];
  passed.push_back(sends ? *trained : passed.size() % 2 == 0);
  return passed.back();
}

}  // namespace terrace::check
