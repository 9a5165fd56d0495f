// The loss of pairs of sequences of which one is preferred. A pair is a few sums over its tokens:
// small beside the logits that these came from, so one thread goes through them in order.
//
// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/preference_loss.h"

#include <algorithm>
#include <cmath>
#include <variant>

namespace terrace::kernels::cpu {
namespace {

// -log sigmoid(x), without overflow.
double NegativeLogSigmoid(double x) {
  return std::max(-x, 0.0) + std::log1p(std::exp(-std::abs(x)));
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

Status PreferenceLoss(const OpAttrs& attrs, std::span<const TensorView> operands, const Context&) {
  const auto& attributes = std::get<PreferenceAttrs>(attrs);
  const int64_t sequence = attributes.sequence;
  const int64_t pairs = operands[0].rows() / (2 * sequence);
  const float* const losses = operands[0].as<const float>();
  const float* const reference = operands[1].as<const float>();
  float* const weights = operands[2].as<float>();
  const double beta = attributes.beta, smoothing = attributes.label_smoothing;
  double loss = 0, margins = 0;
  int64_t right = 0;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const int64_t first = 2 * pair * sequence;
    double difference = 0;  // d of op.h
    for (int64_t t = 0; t < sequence; ++t)
      difference += static_cast<double>(reference[first + t]) - losses[first + t];
    for (int64_t t = sequence; t < 2 * sequence; ++t)
      difference -= static_cast<double>(reference[first + t]) - losses[first + t];
    const double margin = beta * difference;
    loss += (1 - smoothing) * NegativeLogSigmoid(margin) + smoothing * NegativeLogSigmoid(-margin);
    margins += margin;
    right += margin > 0;
    const auto weight = static_cast<float>(beta * ((1 - smoothing) - Sigmoid(margin)));
    std::fill_n(weights + first, sequence, weight);
    std::fill_n(weights + first + sequence, sequence, -weight);
  }
  float* const stats = operands[3].as<float>();
  float* const of_margins = operands[4].as<float>();
  const bool adds = attributes.accumulate;
  stats[0] = static_cast<float>(loss + (adds ? stats[0] : 0.0f));
  stats[1] = static_cast<float>(static_cast<double>(pairs) + (adds ? stats[1] : 0.0f));
  of_margins[0] = static_cast<float>(margins + (adds ? of_margins[0] : 0.0f));
  of_margins[1] = static_cast<float>(static_cast<double>(right) + (adds ? of_margins[1] : 0.0f));
  return {};
}

}  // namespace terrace::kernels::cpu
