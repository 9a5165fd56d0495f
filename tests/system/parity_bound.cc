// SPDX-License-Identifier: Apache-2.0
#include "tests/system/parity_bound.h"

#include <algorithm>
#include <cmath>

namespace terrace {

namespace {

template <typename T>
double ErrorOf(const std::vector<float>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return INFINITY;
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double apart = double{a[i]} - double{b[i]};
    difference += apart * apart;
    norm += double{b[i]} * double{b[i]};
  }
  return std::sqrt(difference) / std::max(std::sqrt(norm), 1e-30);
}

}  // namespace

double RelativeError(const std::vector<float>& a, const std::vector<float>& b) {
  return ErrorOf(a, b);
}
double RelativeError(const std::vector<float>& a, const std::vector<double>& b) {
  return ErrorOf(a, b);
}

// Softmax does not see what all keys of a query have in common, so the gradients of queries and
// keys are small differences of large sums: in f32 with heads of eight one rank's are up to 0.93 of
// the bound from the exact ones, a layout's up to 1.00. PyTorch's are up to 1.09 from its own in
// f64, with its attention in f64 as well 1.08: it is the rounding of activations, not of sums.
bool IsJudgedByExact(const Tensor& tensor) {
  using enum TensorRole;
  return tensor.shape.size() > 1 && (tensor.role == kQkv || tensor.role == kQ || tensor.role == kK);
}

// Gradients of vectors add up tokens of either sign.
double Cancellation(const Tensor& tensor) {
  if (tensor.role == TensorRole::kKBias) return 4;  // without rotary angles nothing is left of it
  if (tensor.shape.size() < 2) return 2;
  return IsJudgedByExact(tensor) ? 1.1 : 1;
}

// 4 * 1.03^(L + 1 - l) * eps for layer l of L (arXiv 2506.09280): what a correct change of the
// order of sums may do to a gradient. Embeddings count as before the first layer, the head as after
// the last.
double GradientBound(const Model& model, const Tensor& tensor, const std::string& precision) {
  const double epsilon = precision == "bf16" ? std::pow(2.0, -8) : std::pow(2.0, -23);
  const auto layers = static_cast<double>(model.config.layers);
  const bool first = IsOfEmbedding(tensor.role);
  const double layer = tensor.layer >= 0 ? tensor.layer + 1.0 : first ? 0.0 : layers + 1;
  return Cancellation(tensor) * 4 * std::pow(1.03, layers + 1 - layer) * epsilon;
}

double LossBound(const std::string& precision) { return precision == "bf16" ? 2e-2 : 1e-5; }

}  // namespace terrace
