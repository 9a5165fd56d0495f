// The update of one parameter or shard by AdamW, where its state rests.
//
// State on the device is updated there at once. Otherwise the state streams through the host in
// chunks: what is on NVMe is loaded, what is on the device copied, a chunk is updated by the host
// and goes back to where it was, while the chunks after it are under way (ZeRO-Infinity,
// Rajbhandari et al. 2021, arXiv 2104.07857, section 5.2).
//
// Borrows the builder. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "coordinator/compiler/tiers.h"

namespace terrace::compiler {

// Flat slices of as many elements, f32 but for weights in bf16, each on any tier.
struct OptimizerState {
  Slice gradient, weight, adam_m, adam_v;
};

class Optimizer {
 public:
  // `scale`, `schedule` and `step` lie on the device; step: of weights in bf16, else absent.
  Optimizer(Slice scale, Slice schedule, Slice step, int64_t chunk_bytes, Builder* builder)
      : on_device_{scale, schedule, step}, builder_(*builder), copies_(chunk_bytes, builder) {}

  void Update(const kernels::AdamwAttrs& attrs, const OptimizerState& state,
              const std::string& name);

 private:
  // The same for all chunks of a step, wherever they are.
  struct Common {
    Slice scale, schedule, step;
  };

  void UpdateChunk(const kernels::AdamwAttrs& attrs, const OptimizerState& state,
                   const std::string& name);
  // `home`: where the weight rests.
  void Compute(kernels::AdamwAttrs attrs, const OptimizerState& here, Slice home,
               const Common& common, const std::string& name);
  Slice Bring(Ring ring, Slice piece, const std::string& name);
  void TakeBack(Slice here, Slice piece, const std::string& name);
  Slice OnHost(Slice device, const std::string& name);

  const Common on_device_;
  Common on_host_;
  Builder& builder_;
  TierCopies copies_;
  std::vector<Slice> loads_, stores_;  // of the present chunk
};

}  // namespace terrace::compiler
