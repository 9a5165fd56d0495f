// The share of their datasheets' peaks that devices reach while they train: every constant with
// which what-if plans are computed, each with its source. None is fitted to a single run; how far
// predictions are off over published runs is measured by tests/bench/calibrate.cc.
//
// A worker's measured profile replaces all of this.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace terrace {

// Devices whose kernels are written alike.
enum class Generation { kVolta, kAmpere, kAda, kHopper, kBlackwell, kCdna3 };

// Shares of the peak of the same arithmetic, at large shapes, in a step that runs for hours.
struct Efficiency {
  double matmul = 0;      // bf16
  double matmul_fp8 = 0;  // 0: no such units
  double attention = 0;   // of the bf16 peak, forward, long sequences, heads of 128
  double attention_grad = 0;
  double memory = 0;  // of the memory's bandwidth, element by element work
  std::string_view source;
};
const Efficiency& EfficiencyOf(Generation generation);

// The share of the large-shape rate that an m x n x k product keeps: tiles do not fill the last
// wave of `multiprocessors`, and each tile has a start and an end beside its products.
double MatmulShapeShare(int64_t multiprocessors, double m, double n, double k);
// The share that attention keeps at this many tokens and this head size.
double AttentionShapeShare(double tokens, double head_size);

// FLOPs a second of attention whose scores are written to memory and read again, as before
// FlashAttention and on devices that it has no kernels for. Both count the FLOPs of causal
// attention, as rates of fused kernels do; the half that the mask throws away is computed as well.
struct UnfusedAttention {
  double forward = 0;
  double backward = 0;  // of the 2.5 times as many FLOPs that a fused backward pass counts
};
// `again`: the backward pass makes the scores anew (selective recompute, arXiv 2205.05198).
UnfusedAttention UnfusedAttentionRates(double matmul_rate, double memory_rate, double tokens,
                                       double head_size, bool again);

// A cap on power lowers the clock: the part of a product's rate that is left.
double PowerShare(double cap_watts, double design_watts);

// Of links: the part of the wire's rate that large collectives reach, and the time of one hop.
struct LinkEfficiency {
  double share = 0;
  double latency_seconds = 0;
  std::string_view source;
};
const LinkEfficiency& NvlinkEfficiency();
const LinkEfficiency& PcieEfficiency();
const LinkEfficiency& NetworkEfficiency();

// What a hidden collective costs the computation beside it: as long as the same bytes take inside a
// node, since its kernels hold multiprocessors and memory bandwidth for that long. ZeRO-3 on H100
// shows it (field reports of FSDP lose 10 to 25 %), a slow network does not add to it.
inline constexpr double kCommunicationSlowdown = 1.0;
// Between the end of a kernel and the start of the next when nothing is captured as a graph.
inline constexpr double kKernelGapSeconds = 3e-6;

// Bytes of a device that are neither arena nor free: the driver's context with the modules loaded,
// the communicators' buffers, the product library's workspace.
struct DeviceOverhead {
  int64_t context_bytes = 0;
  int64_t communicator_bytes = 0;
  int64_t workspace_bytes = 0;
  int64_t total() const { return context_bytes + communicator_bytes + workspace_bytes; }
};
DeviceOverhead OverheadOf(Generation generation);

}  // namespace terrace
