// Every combination of layouts that a few ranks and a tiny model allow, for tests that must hold
// for all of them.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/compiler/compile.h"
#include "coordinator/layout/rules.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace {

struct LayoutCase {
  std::string family;
  v1::Layout layout;
};

inline std::string Describe(const LayoutCase& c) {
  const v1::Layout& l = c.layout;
  return absl::StrCat(
      c.family, " ", l.precision(), " dp", l.data_parallel(), " tp", l.tensor_parallel(),
      l.sequence_parallel() ? "+sp" : "", " pp", l.pipeline_parallel(), "x", l.interleave(), " ",
      l.schedule(), " cp", l.context_parallel(), " ", l.context_type(), " zero", l.zero_stage(),
      l.shard_size() > 0 ? absl::StrCat("/", l.shard_size()) : "", " ", l.recompute(), " m",
      l.micro_batches(), l.reduce_format() == "bf16" ? " bf16 links" : "",
      l.gradient_format() == "bf16" ? " bf16 gradients" : "");
}

// Four layers, four heads; two key-value heads outside gpt2; a vocabulary that nothing divides.
inline std::string MatrixConfig(std::string_view family) {
  std::string config = TinyConfig(family);
  const auto replace = [&](std::string_view from, std::string_view to) {
    const size_t at = config.find(from);
    if (at != std::string::npos) config.replace(at, from.size(), to);
  };
  replace(R"("n_layer": 2)", R"("n_layer": 4)");
  replace(R"("num_hidden_layers": 2)", R"("num_hidden_layers": 4)");
  return config;
}

inline Model MatrixModel(std::string_view family) {
  const auto config = ParseModelConfig(MatrixConfig(family), 16);
  EXPECT_TRUE(config.ok()) << config.status();
  return BuildModel(*config);
}

inline v1::JobSpec MatrixSpec() {
  v1::JobSpec spec = TinySpec();
  spec.mutable_data()->set_sequence_length(16);
  return spec;
}

inline v1::Layout MatrixLayout() {
  v1::Layout layout = TinyLayout({});
  layout.set_micro_batches(3);
  layout.set_tensor_parallel(1);
  layout.set_pipeline_parallel(1);
  layout.set_context_parallel(1);
  layout.set_schedule("1f1b");
  layout.set_interleave(1);
  layout.set_context_type("ring");
  return layout;
}

// All that `max_ranks` ranks allow. `every` > 1 keeps each every-th case only, all features still
// occurring.
inline std::vector<LayoutCase> LayoutMatrix(uint32_t max_ranks, size_t every) {
  std::vector<LayoutCase> cases;
  size_t index = 0;
  const v1::JobSpec spec = MatrixSpec();
  for (const std::string& family : Families()) {
    const Model model = MatrixModel(family);
    for (uint32_t dp : {1, 2, 4}) {
      for (uint32_t tp : {1, 2, 4}) {
        for (uint32_t pp : {1, 2, 4}) {
          for (uint32_t cp : {1, 2}) {
            if (dp * tp * pp * cp > max_ranks) continue;
            for (uint32_t zero : {0, 1, 2, 3}) {
              if (zero > 0 && dp * cp == 1) continue;  // means 0
              for (const char* schedule :
                   {"1f1b", "gpipe", "interleaved", "zb-h1", "zbv", "breadth_first"}) {
                for (const char* recompute : {"none", "selective", "block", "full"}) {
                  for (int variant = 0; variant < 2; ++variant) {
                    LayoutCase c = {family, MatrixLayout()};
                    v1::Layout& l = c.layout;
                    l.set_data_parallel(dp);
                    l.set_tensor_parallel(tp);
                    l.set_pipeline_parallel(pp);
                    l.set_context_parallel(cp);
                    l.set_zero_stage(zero);
                    l.set_schedule(schedule);
                    const bool chunks = l.schedule() == "breadth_first" && pp < 4;
                    l.set_interleave(chunks || TwoChunksByDefault(schedule) ? 2 : 1);
                    l.set_recompute(recompute);
                    l.set_precision(variant == 0 ? "fp32" : "bf16");
                    l.set_sequence_parallel(variant == 1 && tp > 1);
                    if (variant == 1 && cp > 1) l.set_context_type("ulysses");
                    if (variant == 1 && zero > 0 && dp == 4) l.set_shard_size(2);
                    if (variant == 1) l.set_micro_batches(4);
                    if (variant == 1 && dp == 2) l.set_reduce_format("bf16");
                    if (variant == 1 && dp == 4) l.set_gradient_format("bf16");
                    if (!CheckLayout(l, model, spec).ok()) continue;
                    if (index++ % every == 0) cases.push_back(std::move(c));
                  }
                }
              }
            }
          }
        }
      }
    }
  }
  return cases;
}

inline absl::StatusOr<std::vector<v1::Program>> CompileCase(const LayoutCase& c,
                                                            double clip_grad_norm = 1) {
  v1::JobSpec spec = MatrixSpec();
  spec.mutable_train()->set_clip_grad_norm(clip_grad_norm);
  const Model model = MatrixModel(c.family);
  return Compile({.spec = &spec, .model = &model, .layout = c.layout});
}

// The same layout of a model whose loss is computed in several chunks of rows: its vocabulary is
// large and its sequences are long.
inline absl::StatusOr<std::vector<v1::Program>> CompileWithManyLogits(const LayoutCase& c) {
  constexpr int64_t kSequence = 1024;
  v1::JobSpec spec = MatrixSpec();
  spec.mutable_data()->set_sequence_length(kSequence);
  const Model model =
      TinyModel(c.family, {.vocabulary = 300'007, .layers = 4, .sequence = kSequence});
  return Compile({.spec = &spec, .model = &model, .layout = c.layout});
}

}  // namespace terrace
