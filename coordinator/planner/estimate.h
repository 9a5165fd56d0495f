// Closed forms of a layout's memory and time: good to about a tenth for a layout without splits and
// to a quarter otherwise, for ranking candidates before any is compiled.
//
// Memory: weights, gradients and Adam's moments in f32, of which ZeRO stage 1, 2 and 3 shares the
// moments with a copy of the weights, then the gradients, then all (Rajbhandari et al. 2020, arXiv
// 1910.02054); activations of as many micro-batches as the schedule holds at once, tensor- and
// sequence-parallel as in Korthikanti et al. 2022 (arXiv 2205.05198). What is offloaded rests on
// its tier by its parts; the device keeps what passes (two layers' weights and gradients), the host
// the chunks of the optimizer. Time: arithmetic, weight traffic, the bubble (p - 1) / m and its
// fractions, ring collectives; copies of weights and gradients hide behind a pass or make it
// longer, and the offloaded optimizer takes as long as the slowest of its streams.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/model/model.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

struct MemoryEstimate {
  int64_t state_bytes = 0;  // weights and optimizer moments
  int64_t gradient_bytes = 0;
  int64_t activation_bytes = 0;  // kept for the backward pass, with what is computed again
  int64_t host_bytes = 0;        // off the device
  int64_t nvme_bytes = 0;
  // Of the device.
  int64_t total() const { return state_bytes + gradient_bytes + activation_bytes; }
};

// Layouts are those that CheckLayout passes, completed. Borrows nothing. Thread-safe: immutable.
class Estimator {
 public:
  Estimator(const v1::JobSpec& spec, const Model& model);

  // Of one rank of the stage that needs most.
  MemoryEstimate Memory(const v1::Layout& layout) const;
  int64_t DeviceBytes(const v1::Layout& layout) const { return Memory(layout).total(); }

  double StepSeconds(const v1::Layout& layout, const v1::HardwareProfile& profile) const;

 private:
  struct Stage {  // of a layout
    int64_t index = 0;
    int64_t layers = 0;
    int64_t parameters = 0;  // before tensor parallelism divides them
    double flops_per_token = 0;
  };
  std::vector<Stage> Stages(const v1::Layout& layout) const;
  MemoryEstimate StageMemory(const v1::Layout& layout, const Stage& stage) const;
  int64_t ActivationBytes(const v1::Layout& layout, const Stage& stage) const;
  // What the layout keeps of a class of memory on other tiers is taken off the device.
  void Offload(const v1::Layout& layout, const Stage& stage, MemoryEstimate* memory) const;
  double OffloadSeconds(const v1::Layout& layout, const Stage& stage, double busy_seconds,
                        const v1::HardwareProfile& profile) const;
  int64_t LayerTokenBytes(const v1::Layout& layout) const;
  double ComputeSeconds(const v1::Layout& layout, const Stage& stage,
                        const v1::HardwareProfile& profile) const;
  double LayerCommunicationSeconds(const v1::Layout& layout, const Stage& stage,
                                   const v1::HardwareProfile& profile) const;
  double GradientSeconds(const v1::Layout& layout, const Stage& stage,
                         const v1::HardwareProfile& profile) const;

  const ModelConfig config_;
  const int64_t sequence_;
  int64_t layer_parameters_ = 0;
  int64_t embedding_parameters_ = 0;
  int64_t head_parameters_ = 0;  // a tied one too, when another stage than the first has it
  double flops_per_token_ = 0;
};

}  // namespace terrace
