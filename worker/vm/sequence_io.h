// What an executing sequence takes from and hands to the outside: one object per kind of run
// (train, evaluate, generate).
//
// Called on the thread of the instruction's stream, in the order of the program. Implementations
// neither allocate nor fail: what can go wrong (files, ids beyond the vocabulary) was checked when
// they were made.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "proto/v1/program.pb.h"

namespace terrace {

// Where the values of a micro-batch go, T tokens of each; what is empty is not wanted.
struct BatchTarget {
  std::span<int32_t> tokens, targets;
  std::span<int32_t> places;  // 2 T: {position in its sequence, number of the sequence in the run}
  std::span<int32_t> starts;  // positions in their sequences of the first tokens of documents
};

// Where the new tokens of texts go, T rows; the operands of LOAD_PROMPT in program.proto.
struct PromptTarget {
  std::span<int32_t> tokens, positions;
  std::span<int32_t> spans;  // {position of the first, number} of each text
  std::span<int32_t> index;
};

class SequenceIo {
 public:
  virtual ~SequenceIo() = default;
  // The rows of micro-batch `micro_batch` of this rank, one after the other.
  virtual void LoadBatch(int micro_batch, const BatchTarget& batch) = 0;
  // {learning rate, 1 - beta1^t, 1 - beta2^t, factor} of this step.
  virtual void LoadSchedule(std::span<float, 4> schedule) = 0;
  // t - 1: how many updates of the weights came before this step's.
  virtual int32_t Updates() const { return 0; }
  // Of sequences that generate.
  virtual void LoadPrompt(const PromptTarget&) {}
  virtual void Output(v1::OutputKind kind, std::span<const float> values) = 0;
};

// For sequences that take nothing and give nothing: "restore".
class NoIo final : public SequenceIo {
 public:
  void LoadBatch(int, const BatchTarget&) override {}
  void LoadSchedule(std::span<float, 4>) override {}
  void Output(v1::OutputKind, std::span<const float>) override {}
};

}  // namespace terrace
