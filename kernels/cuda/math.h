// The arithmetic of one element: activations, rules of optimizers, positions of tokens.
//
// Compiles as host code too, so that it is tested without a GPU. All in f32; built from the same
// formulas as kernels/cpu. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/bf16.h"
#include "kernels/op.h"

namespace terrace::kernels::cuda {

// gelu(x) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): the tanh form rewritten, which keeps
// its relative accuracy where the tanh form cancels.
constexpr float kGeluLinear = 1.5957691216057308f;  // 2 sqrt(2/pi)
constexpr float kGeluCubic = kGeluLinear * 0.044715f;

// sigmoid(x) and 1 - sigmoid(x), neither of them by a difference of near numbers.
struct Gate {
  float open;
  float closed;
};

TERRACE_HOST_DEVICE inline Gate GateOf(float x) {
  // Beyond this the gate is shut or open to the last bit; a NaN passes, as no comparison holds.
  const float t = x < -87.0f ? -87.0f : x > 87.0f ? 87.0f : x;
  const float e = expf(-t);
  const float open = 1.0f / (1.0f + e);
  return {open, open * e};
}

TERRACE_HOST_DEVICE inline float Gelu(float x) {
  return x * GateOf(x * (kGeluLinear + kGeluCubic * x * x)).open;
}

TERRACE_HOST_DEVICE inline float GeluSlope(float value) {
  // Beyond +-30 the slope is 1 or 0 to the last bit.
  const float x = value < -30.0f ? -30.0f : value > 30.0f ? 30.0f : value;
  const float x2 = x * x;
  const Gate gate = GateOf(x * (kGeluLinear + kGeluCubic * x2));
  return gate.open + x * (kGeluLinear + 3 * kGeluCubic * x2) * (gate.open * gate.closed);
}

// f(x) and f'(x).
struct ValueAndSlope {
  float value;
  float slope;
};

// Activations as types, so that a kernel is compiled for each. A NaN passes.
struct TanhGelu {
  TERRACE_HOST_DEVICE static float Value(float x) { return Gelu(x); }
  TERRACE_HOST_DEVICE static ValueAndSlope Both(float x) { return {Gelu(x), GeluSlope(x)}; }
};

// x Phi(x), the error function's form (Hendrycks and Gimpel 2016, arXiv 1606.08415).
struct ErfGelu {
  // How much of the normal distribution lies below x.
  TERRACE_HOST_DEVICE static float Below(float x) { return 0.5f * erfcf(x * -0.70710678f); }
  TERRACE_HOST_DEVICE static float Value(float x) { return x * Below(x); }
  TERRACE_HOST_DEVICE static ValueAndSlope Both(float x) {
    const float below = Below(x);
    // Beyond +-30 the slope is 1 or 0 to the last bit.
    const float inside = x < -30.0f ? -30.0f : x > 30.0f ? 30.0f : x;
    return {x * below, below + inside * (0.39894228f * expf(-0.5f * inside * inside))};
  }
};

struct Relu {
  TERRACE_HOST_DEVICE static float Value(float x) { return x < 0 ? 0.0f : x; }
  TERRACE_HOST_DEVICE static ValueAndSlope Both(float x) {
    return {Value(x), x > 0 ? 1.0f : x <= 0 ? 0.0f : x};
  }
};

struct Silu {
  TERRACE_HOST_DEVICE static float Value(float x) { return x * GateOf(x).open; }
  TERRACE_HOST_DEVICE static ValueAndSlope Both(float x) {
    const Gate s = GateOf(x);
    return {x * s.open, s.open + x * (s.open * s.closed)};
  }
};

// Logits are c tanh(x / c), or x where c is 0; the slope at x by the capped logit z.
TERRACE_HOST_DEVICE inline float SoftcapOf(float x, float c) {
  return c > 0 ? c * tanhf(x / c) : x;
}
TERRACE_HOST_DEVICE inline float SoftcapSlope(float z, float c) {
  return c > 0 ? 1.0f - (z / c) * (z / c) : 1.0f;
}

// The constants of one step of an optimizer.
struct UpdateStep {
  float grad_scale;
  float penalty;  // what of the weight is added to the gradient
  float decay;    // 1 - learning rate * weight decay
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float inverse_sqrt_correction2;  // 1 / sqrt(1 - beta2^t)
  float epsilon;
  float minus_step_size;      // - learning rate / (1 - beta1^t)
  float minus_learning_rate;  // of rules without that correction
};

// What the attributes say, as a kernel takes it.
struct UpdateFactors {
  OptimizerRule rule;
  float beta1, beta2, epsilon, weight_decay, lr_scale;
};

inline UpdateFactors FactorsOf(const UpdateAttrs& attrs) {
  return {attrs.rule, attrs.beta1, attrs.beta2, attrs.epsilon, attrs.weight_decay, attrs.lr_scale};
}

// From kGradScale's factor and the operand `schedule`.
TERRACE_HOST_DEVICE inline UpdateStep MakeUpdateStep(const UpdateFactors& attrs, float grad_scale,
                                                     const float* schedule) {
  const double learning_rate = static_cast<double>(attrs.lr_scale) * schedule[0];
  const double correction1 = schedule[1], correction2 = schedule[2];
  UpdateStep step;
  step.grad_scale = grad_scale;
  step.penalty = attrs.weight_decay;
  step.decay = static_cast<float>(1.0 - learning_rate * attrs.weight_decay);
  step.beta1 = attrs.beta1;
  step.one_minus_beta1 = static_cast<float>(1.0 - attrs.beta1);
  step.beta2 = attrs.beta2;
  step.one_minus_beta2 = static_cast<float>(1.0 - attrs.beta2);
  step.inverse_sqrt_correction2 = static_cast<float>(1.0 / sqrt(correction2));
  step.epsilon = attrs.epsilon;
  step.minus_step_size = static_cast<float>(-learning_rate / correction1);
  step.minus_learning_rate = static_cast<float>(-learning_rate);
  return step;
}

TERRACE_HOST_DEVICE inline void UpdateAdam(const UpdateStep& step, float g, float decayed,
                                           float* param, float* m, float* v) {
  *m = fmaf(step.one_minus_beta1, g - *m, *m);
  *v = fmaf(step.one_minus_beta2 * g, g, *v * step.beta2);
  const float denominator = fmaf(sqrtf(*v), step.inverse_sqrt_correction2, step.epsilon);
  *param = fmaf(step.minus_step_size, *m / denominator, decayed);
}

TERRACE_HOST_DEVICE inline void UpdateLion(const UpdateStep& step, float g, float* param,
                                           float* m) {
  const float c = fmaf(step.one_minus_beta1, g, *m * step.beta1);
  // Zero and what is no number keep to themselves.
  const float sign = fabsf(c) > 0 ? copysignf(1, c) : c;
  *m = fmaf(step.one_minus_beta2, g, *m * step.beta2);
  *param = fmaf(step.minus_learning_rate, sign, *param * step.decay);
}

// One element by a rule, in the order of operations of the references that optimizer_rule.h names.
// Moments that the rule does not keep are left alone. All threads take the same way.
TERRACE_HOST_DEVICE inline void UpdateByRule(OptimizerRule rule, const UpdateStep& step, float grad,
                                             float* param, float* m, float* v) {
  const float scaled = grad * step.grad_scale;
  const float penalised = fmaf(step.penalty, *param, scaled);
  switch (rule) {
    case OptimizerRule::kAdamw:
      return UpdateAdam(step, scaled, *param * step.decay, param, m, v);
    case OptimizerRule::kAdam:
      return UpdateAdam(step, penalised, *param, param, m, v);
    case OptimizerRule::kSgd:
      *param = fmaf(step.minus_learning_rate, penalised, *param);
      return;
    case OptimizerRule::kMomentum:
      *m = fmaf(step.beta1, *m, penalised);
      *param = fmaf(step.minus_learning_rate, *m, *param);
      return;
    case OptimizerRule::kNesterov:
      *m = fmaf(step.beta1, *m, penalised);
      *param = fmaf(step.minus_learning_rate, fmaf(step.beta1, *m, penalised), *param);
      return;
    case OptimizerRule::kLion:
      return UpdateLion(step, scaled, param, m);
    case OptimizerRule::kMuon:
      return;  // of whole matrices: update_matrix.cu
    case OptimizerRule::kAdafactor:
    case OptimizerRule::kCame:
      return;  // of whole tensors: update_factored.cu
  }
}

// TokenShare for kernels: the position in its sequence of a row.
struct Positions {
  int64_t sequence;
  int64_t ranks;
  int64_t index;
  bool zigzag;

  TERRACE_HOST_DEVICE int64_t Of(int64_t row) const {
    const int64_t i = row % sequence;
    if (!zigzag) return index * sequence + i;
    const int64_t piece = sequence / 2;
    return i < piece ? index * piece + i : (2 * ranks - 1 - index) * piece + (i - piece);
  }
};

inline Positions PositionsOf(const TokenShare& share, int64_t sequence) {
  return {sequence, share.ranks, share.index, share.zigzag};
}

}  // namespace terrace::kernels::cuda
