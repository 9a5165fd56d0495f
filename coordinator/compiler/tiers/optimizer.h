// The update of one parameter or shard by the optimizer's rule, where its state rests.
//
// State on the device is updated there at once. Otherwise the state streams through the host in
// chunks: what is on NVMe is loaded, what is on the device copied, a chunk is updated by the host
// and goes back to where it was, while the chunks after it are under way (ZeRO-Infinity,
// Rajbhandari et al. 2021, arXiv 2104.07857, section 5.2).
//
// Updates share what a step needs once, the schedule, and each names the factor of its gradient.
//
// Borrows the builder. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "coordinator/compiler/tiers/tiers.h"
#include "proto/program/moments.h"

namespace terrace::compiler {

// One moment of a parameter or shard.
struct MomentSlice {
  Slice numbers;
  // There is one for each `block` elements of the other slices where numbers are in int8 blocks;
  // only the last block may be shorter. Absent where they are in no blocks.
  Slice scales = {};
};

// Flat slices with the same number of elements, each on any tier; of a rule of whole matrices, and
// of a factored one, one tensor on the device. All are f32, except that weights may be bf16, and
// moments bf16 or the codes of int8 blocks.
struct OptimizerState {
  Slice gradient, weight;
  Slice rounded;  // of another type: what the new weight is rounded to; may be absent
  std::vector<MomentSlice> moments;  // as many as the rule keeps
  // A factored rule has these, in the order of kFactorKinds; others have none. With them a first
  // moment may be absent before the second.
  std::array<Slice, kFactorKinds.size()> factors = {};
  int64_t block = 0;
};

class Optimizer {
 public:
  // `schedule` and `step` lie on the device; step: of weights in bf16, else absent. `at_start`:
  // where nodes are put that all updates by the host need, which stand before the first of them;
  // null: at the first of them.
  Optimizer(Slice schedule, Slice step, int64_t chunk_bytes, std::vector<Node>* at_start,
            Builder* builder)
      : schedule_(schedule),
        step_(step),
        at_start_(at_start),
        builder_(*builder),
        copies_(chunk_bytes, builder) {}

  // `scale`: on the device.
  void Update(const kernels::UpdateAttrs& attrs, const OptimizerState& state, Slice scale,
              const std::string& name);

 private:
  // The same for all chunks of an update, where it takes place.
  struct Common {
    Slice scale, schedule, step;
  };

  void UpdateChunk(const kernels::UpdateAttrs& attrs, const OptimizerState& state,
                   const Common& common, const std::string& name);
  bool IsOnDevice(const OptimizerState& state) const;
  // `home`: where the weight rests.
  void Compute(kernels::UpdateAttrs attrs, const OptimizerState& here, Slice home,
               const Common& common, const std::string& name);
  Slice Bring(Ring ring, Slice piece, const std::string& name);
  void TakeBack(Slice here, Slice piece, const std::string& name);
  Common CommonOnHost(Slice scale);
  // A copy, made once.
  Slice OnHost(Slice device, const std::string& name);

  const Slice schedule_, step_;
  std::vector<Node>* const at_start_;
  Builder& builder_;
  TierCopies copies_;
  std::map<int, Slice> on_host_;       // copies, by the value on the device
  std::vector<Slice> loads_, stores_;  // of the present chunk
};

}  // namespace terrace::compiler
