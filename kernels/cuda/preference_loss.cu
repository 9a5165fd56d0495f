// The loss of pairs of sequences of which one is preferred. One block goes through the pairs of a
// micro-batch in order: the same sums on every device, and little beside the logits.
//
// SPDX-License-Identifier: Apache-2.0
#include <variant>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/preference_loss.h"

namespace terrace::kernels::cuda {
namespace {

constexpr int kPairThreads = 256;

struct PreferenceArguments {
  const float* losses;
  const float* reference;
  float* weights;
  float* stats;
  float* margins;
  int64_t pairs, sequence;
  double beta, smoothing;
  bool accumulate;
};

// -log sigmoid(x), without overflow.
__device__ double NegativeLogSigmoid(double x) { return fmax(-x, 0.0) + log1p(exp(-fabs(x))); }

__global__ void __launch_bounds__(kPairThreads) PreferenceKernel(PreferenceArguments a) {
  double loss = 0, margins = 0, right = 0;
  for (int64_t pair = 0; pair < a.pairs; ++pair) {
    const int64_t first = 2 * pair * a.sequence;
    double difference = 0;  // d of op.h
    for (int64_t t = threadIdx.x; t < 2 * a.sequence; t += blockDim.x) {
      const double ratio = static_cast<double>(a.reference[first + t]) - a.losses[first + t];
      difference += t < a.sequence ? ratio : -ratio;
    }
    const double margin = a.beta * BlockSum(difference);
    loss +=
        (1 - a.smoothing) * NegativeLogSigmoid(margin) + a.smoothing * NegativeLogSigmoid(-margin);
    margins += margin;
    right += margin > 0 ? 1 : 0;
    const auto weight = static_cast<float>(a.beta * ((1 - a.smoothing) - 1 / (1 + exp(-margin))));
    for (int64_t t = threadIdx.x; t < 2 * a.sequence; t += blockDim.x) {
      a.weights[first + t] = t < a.sequence ? weight : -weight;
    }
  }
  if (threadIdx.x != 0) return;
  const bool adds = a.accumulate;
  a.stats[0] = static_cast<float>(loss + (adds ? a.stats[0] : 0.0f));
  a.stats[1] = static_cast<float>(static_cast<double>(a.pairs) + (adds ? a.stats[1] : 0.0f));
  a.margins[0] = static_cast<float>(margins + (adds ? a.margins[0] : 0.0f));
  a.margins[1] = static_cast<float>(right + (adds ? a.margins[1] : 0.0f));
}

}  // namespace

Status PreferenceLoss(const OpAttrs& attrs, std::span<const TensorView> operands,
                      const Context& context) {
  const auto& preference = std::get<PreferenceAttrs>(attrs);
  const PreferenceArguments arguments = {.losses = operands[0].as<const float>(),
                                         .reference = operands[1].as<const float>(),
                                         .weights = operands[2].as<float>(),
                                         .stats = operands[3].as<float>(),
                                         .margins = operands[4].as<float>(),
                                         .pairs = operands[0].rows() / (2 * preference.sequence),
                                         .sequence = preference.sequence,
                                         .beta = preference.beta,
                                         .smoothing = preference.label_smoothing,
                                         .accumulate = preference.accumulate};
  return Launch("preference_loss", PreferenceKernel, LaunchShape{.threads = kPairThreads}, context,
                arguments);
}

}  // namespace terrace::kernels::cuda
