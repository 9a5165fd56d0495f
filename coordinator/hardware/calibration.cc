// SPDX-License-Identifier: Apache-2.0
#include "coordinator/hardware/calibration.h"

#include <algorithm>
#include <cmath>

namespace terrace {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// cuBLAS's usual tile: 128 x 128 accumulators; larger products use larger ones and lose nothing.
constexpr double kTileElements = 128.0 * 128.0;
// Products along k before a tile's prologue and epilogue are as long as its main loop.
constexpr double kTileStart = 128;
// Tokens at which attention is half as fast as at many: FlashAttention-2, arXiv 2307.08691, figures
// 4 to 6 (A100, causal: 2k tokens reach three quarters of 16k) and FlashAttention-3, arXiv
// 2407.08608, figure 5.
constexpr double kAttentionHalfTokens = 700;
// Heads of 64 reach about nine tenths of heads of 128 (the same figures).
constexpr double kHeadHalf = 8;

// Of a score in 16 bits while it is written by its product, read and written by softmax and by
// dropout (with a mask of a byte), and read by the product with the values.
constexpr double kScoreBytes = 2 + 4 + 5 + 2;
// Back: read by the values' gradient; its gradient written, through dropout and softmax, which
// reads the weights too, and read by two products.
constexpr double kScoreGradBytes = 2 + 2 + 5 + 6 + 4;

// Above idle, power goes with clock x voltage^2; near the top voltage rises with the root of the
// clock, below it hardly: the clock goes with about the root of the power.
constexpr double kIdleShare = 0.12;

}  // namespace

// "MAF": best product of a sweep, ml-engineering (github.com/stas00/ml-engineering, compute/
// accelerator, "Maximum Achievable Matmul FLOPS"): A100 0.859, A100 PCIe 0.822, H100 0.801, B200
// 0.776, MI300X 0.601. In training the operands are not chosen and the device is warm: SemiAnalysis
// ("MI300X vs H100 vs H200 Benchmark Part 1", 2024) has H100 and H200 at 720 of 989.5 bf16 and
// 1,280 of 1,979 fp8, MI300X at 620 of 1,307.
const Efficiency& EfficiencyOf(Generation generation) {
  static const Efficiency kVolta = {
      .matmul = 0.75,
      .attention = 0.35,
      .attention_grad = 0.30,
      .memory = 0.85,
      .source =
          "Jia et al. 2018, arXiv 1804.06826: 93 of 125 TFLOP/s; no bf16, no flash attention"};
  static const Efficiency kAmpere = {
      .matmul = 0.78,
      .attention = 0.62,
      .attention_grad = 0.56,
      .memory = 0.88,
      .source = "MAF 0.82 to 0.86; attention: arXiv 2307.08691, figures 5 and 6"};
  static const Efficiency kAda = {
      .matmul = 1.0,
      .attention = 0.85,
      .attention_grad = 0.75,
      .memory = 0.88,
      .source = "cuBLAS at boost clocks above those of the whitepaper's peak (2.52 GHz)"};
  static const Efficiency kHopper = {
      .matmul = 0.69,
      .matmul_fp8 = 0.647,
      .attention = 0.36,
      .attention_grad = 0.31,
      .memory = 0.88,
      .source =
          "MAF 0.80, SemiAnalysis 0.73 and 0.65 for fp8; attention between arXiv 2307.08691 "
          "(0.35) and arXiv 2407.08608 (0.65 forward, 0.52 backward)"};
  static const Efficiency kBlackwell = {
      .matmul = 0.66,
      .matmul_fp8 = 0.60,
      .attention = 0.36,
      .attention_grad = 0.31,
      .memory = 0.88,
      .source = "MAF 0.78; arXiv 2604.23466, tables III and IV: 0.64 to 0.74 on layers of Llama"};
  static const Efficiency kCdna3 = {
      .matmul = 0.47,
      .matmul_fp8 = 0.38,
      .attention = 0.30,
      .attention_grad = 0.22,
      .memory = 0.80,
      .source = "MAF 0.60; SemiAnalysis 620 of 1,307 bf16, 990 of 2,615 fp8"};
  switch (generation) {
    case Generation::kVolta:
      return kVolta;
    case Generation::kAmpere:
      return kAmpere;
    case Generation::kAda:
      return kAda;
    case Generation::kHopper:
      return kHopper;
    case Generation::kBlackwell:
      return kBlackwell;
    case Generation::kCdna3:
      break;
  }
  return kCdna3;
}

double MatmulShapeShare(int64_t multiprocessors, double m, double n, double k) {
  // On average half of the multiprocessors idle in the last wave.
  const double tiles = std::max(1.0, m * n / kTileElements);
  return tiles / (tiles + static_cast<double>(multiprocessors) / 2) * k / (k + kTileStart);
}

double AttentionShapeShare(double tokens, double head_size) {
  return tokens / (tokens + kAttentionHalfTokens) *
         std::min(1.0, head_size / (head_size + kHeadHalf) * (128 + kHeadHalf) / 128);
}

UnfusedAttention UnfusedAttentionRates(double matmul_rate, double memory_rate, double tokens,
                                       double head_size, bool again) {
  // Of one head. The scores' product has few steps along k, that with the values narrow tiles.
  const double scores = tokens * tokens, product = 2 * scores * head_size;
  const double scoring = product / (matmul_rate * head_size / (head_size + kTileStart));
  const double weighing = product / (matmul_rate * tokens / (tokens + kTileStart) *
                                     std::min(1.0, head_size / kTileStart));
  const double forward = scoring + weighing + kScoreBytes * scores / memory_rate;
  const double backward =
      2 * (scoring + weighing) + kScoreGradBytes * scores / memory_rate + (again ? forward : 0);
  return {.forward = product / forward, .backward = 2.5 * product / backward};
}

double PowerShare(double cap_watts, double design_watts) {
  if (cap_watts <= 0 || cap_watts >= design_watts) return 1;
  const double idle = kIdleShare * design_watts;
  return std::sqrt(std::max(0.05, (cap_watts - idle) / (design_watts - idle)));
}

// Rates: busbw of nccl-tests at 1 GiB and more. Latencies: the model in NCCL (src/graph/tuning.cc,
// hwLat of the ring with the simple protocol: 3.4, 5.7 and 14 us a hop).
const LinkEfficiency& NvlinkEfficiency() {
  static const LinkEfficiency kNvlink = {
      0.80, 3.4e-6, "nccl-tests: 235 of 300 GB/s on DGX A100, 360 of 450 on DGX H100"};
  return kNvlink;
}
const LinkEfficiency& PcieEfficiency() {
  static const LinkEfficiency kPcie = {
      0.40, 5.7e-6,
      "nccl-tests over the host without peer-to-peer: each byte crosses its memory twice"};
  return kPcie;
}
const LinkEfficiency& NetworkEfficiency() {
  static const LinkEfficiency kNetwork = {
      0.92, 14e-6, "nccl-tests: 46 of 50 GB/s a 400 Gb/s adapter, 23 of 25 of 200"};
  return kNetwork;
}

// CUDA 12 context with eagerly loaded kernels: 0.5 to 0.6 GiB on Hopper; NCCL: some 10 MiB a
// channel and peer group; cuBLAS: 32 MiB a stream on Hopper, 8 elsewhere (cublasSetWorkspace).
DeviceOverhead OverheadOf(Generation generation) {
  const bool large = generation == Generation::kHopper || generation == Generation::kBlackwell;
  return {.context_bytes = (large ? 600 : 450) * kMiB,
          .communicator_bytes = (large ? 1024 : 512) * kMiB,
          .workspace_bytes = (large ? 64 : 16) * kMiB};
}

}  // namespace terrace
