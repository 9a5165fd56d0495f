// The rules by which optimizers update weights, one element at a time, as a table: how many moments
// each keeps, how checkpoints name them, and what it costs. A rule acts in f32 on the gradient
// after it was scaled and clipped; `schedule` gives the learning rate and the bias corrections.
//
// w: weight, g: gradient, lr: learning rate, d: weight decay, m and v: first and second moment, b1
// and b2: their decay, t: the step.
//
// Thread-safe: constants.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace terrace::kernels {

enum class OptimizerRule : uint8_t {
  // Loshchilov and Hutter 2017 (arXiv 1711.05101), in the order of torch.optim.AdamW: w -= lr d w;
  // m += (1 - b1) (g - m); v = b2 v + (1 - b2) g^2;
  // w -= lr / (1 - b1^t) m / (sqrt(v / (1 - b2^t)) + epsilon).
  kAdamw = 1,
  // Kingma and Ba 2014 (arXiv 1412.6980), with the L2 penalty of torch.optim.Adam: g += d w, then
  // as above without the decay of w.
  kAdam,
  // g += d w; w -= lr g.
  kSgd,
  // torch.optim.SGD with momentum b1 (Polyak 1964; Sutskever et al. 2013): g += d w; m = b1 m + g;
  // w -= lr m.
  kMomentum,
  // The same with Nesterov's look ahead: w -= lr (g + b1 m).
  kNesterov,
  // Chen et al. 2023 (arXiv 2302.06675): w -= lr d w; w -= lr sign(b1 m + (1 - b1) g);
  // m = b2 m + (1 - b2) g.
  kLion,
  // Muon, Jordan et al. 2024 (kellerjordan.github.io/posts/muon), in the order of torch.optim.Muon,
  // of one matrix at a time: m += (1 - b1) (g - m); u = b1 m + (1 - b1) g; w -= lr d w;
  // w -= lr s O(u). O(u) is near the matrix with u's singular vectors whose singular values are 1:
  // X = u / max(|u|, epsilon), then `iterations` times X = a X + (b A + c A A) X with A = X X', or
  // from the right with X' X where that is smaller, and a, b and c of kNewtonSchulz.
  kMuon,
  // Shazeer and Stern 2018 (arXiv 1804.04235), in the order of transformers' Adafactor, of a whole
  // tensor: s = g^2 + epsilon; b2 = 1 - schedule[2]; of a matrix R = b2 R + (1 - b2) mean of s by
  // row, C likewise by column, u = g / sqrt(R / mean(R)) / sqrt(C); of a vector v = b2 v +
  // (1 - b2) s, u = g / sqrt(v); u /= max(1, rms(u) / clip_threshold); a = lr max(least_scale,
  // rms(w)), or lr where least_scale is 0; m = b1 m + (1 - b1) a u where there is a first moment,
  // which then is the step, a u otherwise; w -= a d w; w -= the step.
  kAdafactor,
  // CAME, Luo et al. 2023 (arXiv 2307.02047), in the order of its authors' code: u as above with a
  // constant b2 and clipped; m = b1 m + (1 - b1) u; of a matrix e = (u - m)^2 + error_epsilon, its
  // means by row and column with beta3, and the step is lr m / sqrt(as above); of a vector lr m.
  kCame,
};

inline constexpr std::array<float, 3> kNewtonSchulz = {3.4445f, -4.775f, 2.0315f};

inline constexpr int kMomentsMax = 2;

struct OptimizerRow {
  OptimizerRule rule = OptimizerRule::kAdamw;
  std::string_view name;  // in programs and layouts
  int moments = 0;        // of the size of the weights; of a factored rule at most so many
  // What checkpoints call a tensor's moments: "<tensor>.<stored>". Rules whose moments mean the
  // same share a name.
  std::array<std::string_view, kMomentsMax> stored;
  bool decays_in_gradient = false;  // g += d w
  bool reads_betas = false;         // both; the others read at most the first
  int flops = 0;                    // an element; without products of matrices
  bool whole_matrix = false;        // matrices alone, each as a whole: kUpdateMatrix
  bool factored = false;            // every tensor as a whole: kUpdateFactored
};

inline constexpr OptimizerRow kOptimizerRows[] = {
    {.rule = OptimizerRule::kAdamw,
     .name = "adamw",
     .moments = 2,
     .stored = {"adam_m", "adam_v"},
     .reads_betas = true,
     .flops = 15},
    {.rule = OptimizerRule::kAdam,
     .name = "adam",
     .moments = 2,
     .stored = {"adam_m", "adam_v"},
     .decays_in_gradient = true,
     .reads_betas = true,
     .flops = 16},
    {.rule = OptimizerRule::kSgd, .name = "sgd", .decays_in_gradient = true, .flops = 5},
    {.rule = OptimizerRule::kMomentum,
     .name = "momentum",
     .moments = 1,
     .stored = {"momentum"},
     .decays_in_gradient = true,
     .flops = 7},
    {.rule = OptimizerRule::kNesterov,
     .name = "nesterov",
     .moments = 1,
     .stored = {"momentum"},
     .decays_in_gradient = true,
     .flops = 9},
    {.rule = OptimizerRule::kLion,
     .name = "lion",
     .moments = 1,
     .stored = {"lion_m"},
     .reads_betas = true,
     .flops = 10},
    {.rule = OptimizerRule::kMuon,
     .name = "muon",
     .moments = 1,
     .stored = {"muon_m"},
     .flops = 12,
     .whole_matrix = true},
    {.rule = OptimizerRule::kAdafactor,
     .name = "adafactor",
     .moments = 2,
     .stored = {"adafactor_m", "adafactor_v"},
     .flops = 20,
     .factored = true},
    {.rule = OptimizerRule::kCame,
     .name = "came",
     .moments = 2,
     .stored = {"came_m", "came_v"},
     .reads_betas = true,
     .flops = 36,
     .factored = true},
};

// Null when no rule has that name.
constexpr const OptimizerRow* FindOptimizer(std::string_view name) {
  for (const OptimizerRow& row : kOptimizerRows) {
    if (row.name == name) return &row;
  }
  return nullptr;
}
// Of AdamW where `rule` is none.
constexpr const OptimizerRow& RowOf(OptimizerRule rule) {
  for (const OptimizerRow& row : kOptimizerRows) {
    if (row.rule == rule) return row;
  }
  return kOptimizerRows[0];
}

}  // namespace terrace::kernels
