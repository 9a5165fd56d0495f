// The cases of the op conformance suite: what is run, with which shapes, types, strides, absent
// operands and shared memory.
//
// A case says nothing about numbers; op_conformance.h fills the operands and judges the results.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/op.h"

namespace terrace::kernels::conformance {

// Operand `operand` lies in the memory of operand `same_as`.
struct SharedMemory {
  int operand = 0;
  int same_as = 0;
};

struct OpCase {
  std::string name;  // a valid test name: letters, digits, underscores
  Op op = Op::kEmbedding;
  OpAttrs attrs;
  std::vector<TensorShape> operands;
  std::vector<SharedMemory> shared;
  // Of a gradient op: the forward case whose operands its own follow from. Otherwise null.
  std::shared_ptr<const OpCase> forward;
};

// Every op of the table in several forms, gradients included.
std::vector<OpCase> AllCases();
// Those of the gradient cases that finite differences can judge: f32, nothing added to.
std::vector<OpCase> DifferentiableCases();

// Attention in bf16 on bf16 or in f16 on f16 over sequences of one document: what matrix
// instructions take as it lies in memory, and sm_90a's own where its rows are whole, aligned 16
// bytes.
bool IsAttentionOfHalves(const OpCase& op_case);

// Where an operand of a gradient op comes from.
struct GradientOperand {
  enum class Source {
    kOwn,             // not from the forward op: the residual
    kForward,         // the forward operand of that index, after the forward op has run
    kSeed,            // the derivative of the objective by that forward operand, random
    kDerivative,      // output: the derivative by that forward operand
    kSeedDerivative,  // the seed before, the derivative after
  };
  Source source = Source::kOwn;
  int forward = 0;
};

struct GradientRule {
  Op forward = Op::kEmbedding;
  Op gradient = Op::kEmbedding;
  std::vector<GradientOperand> operands;
};

// Null when `gradient` is no gradient op; kRope counts as its own.
const GradientRule* FindGradientRule(Op gradient);

}  // namespace terrace::kernels::conformance
