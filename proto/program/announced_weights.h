// The tensors of kind WEIGHT that a program's initializers announce, on all stages: what its state,
// and so a checkpoint, holds of weights.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/format.h"
#include "kernels/optimizer_rule.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// A frozen tensor in blocks is two: its codes, bytes under its own name, and their scales
// (CodeScalesName in state_layout.h).
struct AnnouncedWeight {
  enum class Part : uint8_t { kNumbers, kCodes, kScales };
  std::string name;
  Part part = Part::kNumbers;
  kernels::DType dtype = kernels::DType::kF32;
  std::vector<int64_t> shape;
  const v1::Initializer* initializer = nullptr;
};

// Codes of so many elements a scale.
struct CodeFormat {
  const kernels::FormatRow* row = nullptr;
  int64_t block = 0;

  int64_t block_bytes() const { return block / row->packed; }
  bool operator==(const CodeFormat&) const = default;
};

// How the tensor rests where that is as codes; no row where it rests as numbers, or in blocks that
// nobody can have: of no format, or that do not divide its rows.
CodeFormat CodesOf(const v1::Initializer& initializer);

// In the initializers' order, scales behind their codes. Borrows the program.
std::vector<AnnouncedWeight> AnnouncedWeights(const v1::Program& program);
std::map<std::string, AnnouncedWeight> AnnouncedByName(const v1::Program& program);

// By which rule each tensor is updated: rules.optimizer, where its initializer names no other.
// Thread-safe: immutable once made.
class TensorRules {
 public:
  explicit TensorRules(const v1::Program& program);

  const kernels::OptimizerRow& Of(const std::string& tensor) const;
  // What it keeps of the tensor (MomentKinds).
  std::vector<v1::StateKind> Moments(const std::string& tensor, bool is_matrix) const;

 private:
  const kernels::OptimizerRow* job_ = nullptr;
  const bool averages_;
  std::map<std::string, const kernels::OptimizerRow*> others_;
};

}  // namespace terrace
