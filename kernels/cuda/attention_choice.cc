// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention_choice.h"

#include <cstring>

namespace terrace::kernels::cuda {
namespace {

constexpr int64_t kMaxHeadDim = 128;                  // of matrix instructions
constexpr int64_t kTensorStrides = int64_t{1} << 40;  // those of a tensor map are shorter

}  // namespace

AttentionPath ChooseAttention(const AttentionFacts& facts) {
  const bool half =
      facts.precision == MatmulPrecision::kBF16 || facts.precision == MatmulPrecision::kF16;
  if (!half || facts.head_dim > kMaxHeadDim) return AttentionPath::kF32;
  // The largest of scaled scores is taken before they are scaled: so scale may not be negative.
  const bool fits = facts.wide && facts.scale > 0 && !facts.documents && !facts.terms &&
                    facts.longest_stride_bytes < kTensorStrides;
  return facts.wgmma && fits ? AttentionPath::kWgmma : AttentionPath::kMma;
}

bool WantsWgmma(const char* setting) {
  return setting != nullptr && std::strcmp(setting, "wgmma") == 0;
}

}  // namespace terrace::kernels::cuda
