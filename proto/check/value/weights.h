// The checker's fifth part: who writes what lasts. Only the optimizer of "train" changes the state
// of the manifest, every element once and with the moments that belong to it, in its place or in a
// copy that then goes back there; what "restore" makes of weights "train" may make anew, by
// gathering, rounding and copying alone; residuals are written where something is encoded
// (residuals.h); nobody else writes persistent buffers.
//
// Borrows the program. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/op.h"
#include "proto/check/instruction/instructions.h"
#include "proto/check/value/flow.h"
#include "proto/check/value/ranges.h"
#include "proto/program/announced_weights.h"
#include "proto/v1/program.pb.h"

namespace terrace::check {

// The state manifest by address. REQUIRES: CheckState passed.
class StateIndex {
 public:
  explicit StateIndex(const v1::Program& program);

  // The bytes of the buffer that hold state.
  const ByteSet& bytes(uint32_t buffer) const { return filled_[buffer]; }
  // The elements of a rank's shard; 0: the buffer is no shard.
  int64_t shard_elements(uint32_t buffer) const;
  // Calls `visit` for the ranges with bytes between those of [begin, end) of the buffer, or of the
  // region of its shards.
  void ForEach(uint32_t buffer, int64_t begin, int64_t end,
               absl::FunctionRef<void(const v1::StateRange&)> visit) const;
  // Both buffers hold shards, and the regions hold the same places of the same tensors, as `kind`
  // in the second.
  bool SameRegion(uint32_t weights, uint32_t moments, v1::StateKind kind) const;
  // The second buffer holds, as `kind`, the scales of blocks of so many elements of the first:
  // moments or, where `kind` is WEIGHT, the codes of frozen tensors.
  bool ScalesOf(uint32_t moments, uint32_t scales, v1::StateKind kind, int64_t block) const;

 private:
  struct Entry {
    int64_t begin = 0, end = 0, end_max = 0;  // bytes; end_max: of this entry and those before it
    const v1::StateRange* range = nullptr;
  };
  std::vector<ByteSet> filled_;
  std::vector<std::vector<Entry>> by_buffer_;  // by begin
  mutable std::map<std::pair<uint32_t, uint32_t>, bool> same_, scales_;
};

// Two ranges hold the same elements at equal distances from their offsets.
bool SamePlaces(const v1::StateRange& a, const v1::StateRange& b);

absl::Status CheckPersistentWrites(const v1::Program& program, const StateIndex& state,
                                   const CheckedSequence& sequence);

// Elements of the state, and where in an operand a copy of them lies.
struct Held {
  int64_t at = 0;  // elements from the operand's first
  uint32_t buffer = 0;
  int64_t begin = 0, end = 0;  // elements of that buffer
  int64_t element_bytes = 0;   // of the operand, and so of the buffer: what is rounded is no state

  ByteRange bytes() const { return {begin * element_bytes, end * element_bytes}; }
};
// The state that an operand of optimizer instruction i holds, in order; what is no state is left
// out.
std::vector<Held> HeldState(const Flow& flow, const CheckedSequence& sequence, int i, int operand);

// The operand of an optimizer op that its gradients are multiplied by; behind it is the schedule.
constexpr int ScaleOperand(kernels::Op op) { return op == kernels::Op::kUpdateFactored ? 8 : 4; }

// The optimizer ops of "train", and the copies that bring home what they changed.
class Updates {
 public:
  Updates(const v1::Program& program, const StateIndex& state, const CheckedSequence& train,
          const Flow& flow);

  // Instruction i, before the flow has passed it. Of an optimizer op: what it updates are weights,
  // no element was updated before, and each goes with its own moments. Of a copy: what it writes
  // over state is that state, updated.
  absl::Status Check(int i);
  // After all: no weight that is trained was left out, and no update stayed in a copy.
  absl::Status CheckComplete() const;

 private:
  struct Rate {
    float lr_scale = 1, weight_decay = 0;
    bool operator==(const Rate&) const = default;
  };

  // A state that an optimizer op updates beside weights, and its operand.
  struct Moment {
    int operand = 0;
    v1::StateKind kind = v1::STATE_UNSPECIFIED;
  };

  absl::Status CheckOptimizer(int i, const std::string& where);
  std::vector<Moment> MomentsOf(const CheckedInstruction& instruction) const;
  absl::Status CheckRounding(const kernels::RoundingAttrs& rounding,
                             const std::vector<Held>& weights, const std::string& where) const;
  // `what` it should be: "moment".
  absl::Status CheckHeld(const Access& access, const char* what, const std::string& where) const;
  absl::Status CheckWeight(const Held& weight, const std::string& where);
  absl::Status CheckRate(const Held& weight, const kernels::UpdateAttrs& attrs,
                         const std::string& where);
  absl::Status CheckRule(const Held& weight, kernels::OptimizerRule rule,
                         const std::string& where) const;
  // The tensor that an op takes as a whole; of weights in shards that of each shard, null where it
  // has padding there, which some do not.
  absl::StatusOr<std::vector<const v1::StateRange*>> WholeTensors(const std::vector<Held>& weights,
                                                                  int i,
                                                                  const std::string& where) const;
  absl::Status CheckFactored(const std::vector<Held>& weights, int i,
                             const std::string& where) const;
  absl::Status CheckFactor(const std::vector<const v1::StateRange*>& tensors,
                           const std::vector<Held>& weights, int i, const Moment& moment,
                           const std::string& where) const;
  absl::Status CheckMoments(const std::vector<Held>& weights, int i, int operand,
                            v1::StateKind kind, const std::string& where) const;
  absl::Status CheckMoment(const Held& weight, const Held& moment, v1::StateKind kind,
                           const std::string& where) const;
  absl::Status CheckScales(int i, int operand, int scales_operand, v1::StateKind kind,
                           const std::string& where) const;
  absl::Status CheckWriteBack(const Access& source, const Access& target, int64_t element_bytes,
                              const std::string& where) const;
  absl::Status CheckHome(const v1::StateRange& range) const;

  const v1::Program& program_;
  const StateIndex& state_;
  const CheckedSequence& train_;
  const Flow& flow_;
  const std::set<std::string> frozen_;
  const TensorRules rules_;            // by which tensors are updated
  std::vector<ByteMap> updated_;       // by buffer
  std::map<std::string, Rate> rates_;  // by tensor
};

}  // namespace terrace::check
