// The rows of the op table, for the three files that interpret it (op_table.cc, op_shapes.cc,
// op_cost.cc).
//
// One row an op: its name, the attributes it takes and its operands in order, each with the shape
// it must have. A shape is a list of symbols, one a dimension: a number stands for itself, a letter
// for whatever size the first operand that uses the letter has, and a leading ".." for any number
// of dimensions, the same wherever it appears in the row.
//
// Internal to kernels/. Thread-safe: constants.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string_view>

#include "kernels/op.h"

namespace terrace::kernels {

// What an op does to an operand, before its attributes are known.
enum class Role : uint8_t {
  kRead,
  kWrite,
  kUpdate,
  kSum,      // written, or updated where the attributes say accumulate
  kSumKeys,  // the same by accumulate_keys
  kAux,      // the matmul's aux: written by kGelu, read by kGeluGrad
};

// Which element types an operand may have.
enum class Elements : uint8_t {
  kI32,
  kF32,
  kBF16,
  kU8,
  kMoment,      // f32 or bf16, one type for all such operands of the instruction
  kGradient,    // f32 or bf16, each operand its own
  kActivation,  // f32, bf16 or f16, one type for all such operands of the instruction
  kFloat,       // f32, bf16 or f16, each operand its own
};

struct OperandRow {
  std::string_view name;
  std::string_view dims;  // "T,h"
  Elements elements = Elements::kActivation;
  Role role = Role::kRead;
  bool optional = false;
  bool strided = false;  // dimension 0 may have gaps; operands of one dimension never do
};

inline constexpr int kMaxOperands = 11;

struct OpRow {
  Op op = Op::kEmbedding;
  std::string_view name;
  size_t attrs = 0;  // index of the alternative of OpAttrs
  OperandRow operands[kMaxOperands] = {};
};

// Null when `op` is no value of the enum, as it may be when it came over the wire.
const OpRow* FindRow(Op op);

}  // namespace terrace::kernels
