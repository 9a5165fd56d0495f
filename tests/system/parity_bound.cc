// SPDX-License-Identifier: Apache-2.0
#include "tests/system/parity_bound.h"

#include <algorithm>
#include <cmath>

namespace terrace {

double RelativeError(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INFINITY;
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double apart = double{a[i]} - double{b[i]};
    difference += apart * apart;
    norm += double{b[i]} * double{b[i]};
  }
  return std::sqrt(difference) / std::max(std::sqrt(norm), 1e-30);
}

// Gradients of vectors add up tokens of either sign. Softmax does not see what all keys of a query
// have in common, so the gradients of queries and keys are such differences as well: in f32 with
// vectors of eight one rank's are up to 0.97 of the bound from the exact ones, so are many ranks',
// and both up to 1.05 from each other. PyTorch's are 1.08 from the exact ones, with its attention
// in f64 as well: it is the rounding of activations, not of sums.
double Cancellation(const Tensor& tensor) {
  using enum TensorRole;
  if (tensor.role == kKBias) return 4;  // without rotary angles nothing but such a difference
  if (tensor.shape.size() < 2) return 2;
  const bool scores = tensor.role == kQkv || tensor.role == kQ || tensor.role == kK;
  return scores ? 1.1 : 1;
}

// 4 * 1.03^(L + 1 - l) * eps for layer l of L (arXiv 2506.09280): what a correct change of the
// order of sums may do to a gradient. Embeddings count as before the first layer, the head as after
// the last.
double GradientBound(const Model& model, const Tensor& tensor, const std::string& precision) {
  const double epsilon = precision == "bf16" ? std::pow(2.0, -8) : std::pow(2.0, -23);
  const auto layers = static_cast<double>(model.config.layers);
  const bool first =
      tensor.role == TensorRole::kTokenEmbedding || tensor.role == TensorRole::kPositionEmbedding;
  const double layer = tensor.layer >= 0 ? tensor.layer + 1.0 : first ? 0.0 : layers + 1;
  return Cancellation(tensor) * 4 * std::pow(1.03, layers + 1 - layer) * epsilon;
}

double LossBound(const std::string& precision) { return precision == "bf16" ? 2e-2 : 1e-5; }

}  // namespace terrace
