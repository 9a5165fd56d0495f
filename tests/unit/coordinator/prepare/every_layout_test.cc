// Every combination of parallelism, ZeRO, schedule and recompute of a small model that fits in
// eight ranks compiles to programs that the checker admits. A sample of the combinations here; all
// of them with TERRACE_ALL_LAYOUTS=1 in the environment (20 s).
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "coordinator/compiler/compile.h"
#include "coordinator/layout/rules.h"
#include "coordinator/prepare/layout_text.h"
#include "proto/check/program_check.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace {
namespace {

constexpr int64_t kSequence = 16;
constexpr size_t kStride = 13;  // shares no factor with the length of an inner loop

// Five layers: no number of stages divides them.
Model FiveLayers() {
  const auto config = ParseModelConfig(
      R"({"model_type": "llama", "vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 5,
          "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
          "intermediate_size": 48, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
          "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false})",
      kSequence);
  EXPECT_TRUE(config.ok()) << config.status();
  return BuildModel(*config);
}

std::vector<v1::Layout> Degrees() {
  std::vector<v1::Layout> layouts;
  for (const uint32_t dp : {1, 2}) {
    for (const uint32_t tp : {1, 2}) {
      for (const uint32_t cp : {1, 2}) {
        for (const uint32_t pp : {1, 2, 4}) {
          if (dp * tp * cp * pp > 8) continue;
          v1::Layout layout = TinyLayout({.micro_batches = 3});
          layout.set_data_parallel(dp);
          layout.set_tensor_parallel(tp);
          layout.set_context_parallel(cp);
          layout.set_pipeline_parallel(pp);
          layouts.push_back(layout);
        }
      }
    }
  }
  return layouts;
}

// All variants of `layout` in one key.
template <typename Value, typename Set>
std::vector<v1::Layout> Times(const std::vector<v1::Layout>& layouts,
                              const std::vector<Value>& values, Set set) {
  std::vector<v1::Layout> product;
  for (const v1::Layout& layout : layouts) {
    for (const Value& value : values) {
      product.push_back(layout);
      set(product.back(), value);
    }
  }
  return product;
}

std::vector<v1::Layout> AllLayouts(const Model& model, const v1::JobSpec& spec) {
  using Texts = std::vector<std::string>;
  std::vector<v1::Layout> layouts = Degrees();
  layouts = Times(layouts, std::vector<uint32_t>{0, 1, 2, 3},
                  [](v1::Layout& l, uint32_t zero) { l.set_zero_stage(zero); });
  layouts = Times(layouts, Texts{"gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "breadth_first"},
                  [](v1::Layout& l, const std::string& name) {
                    l.set_schedule(name);
                    if (InRuns(name)) l.set_interleave(2);
                  });
  layouts = Times(layouts, Texts{"none", "selective", "block", "sqrt", "full"},
                  [](v1::Layout& l, const std::string& name) { l.set_recompute(name); });
  layouts = Times(layouts, Texts{"ring", "ulysses"},
                  [](v1::Layout& l, const std::string& name) { l.set_context_type(name); });
  layouts = Times(layouts, std::vector<bool>{false, true},
                  [](v1::Layout& l, bool on) { l.set_sequence_parallel(on); });
  std::vector<v1::Layout> allowed;
  for (const v1::Layout& layout : layouts) {
    const bool same_as_another =
        (layout.zero_stage() > 0 && layout.data_parallel() * layout.context_parallel() == 1) ||
        (layout.context_type() == "ulysses" && layout.context_parallel() == 1);
    if (!same_as_another && CheckLayout(layout, model, spec).ok()) {
      allowed.push_back(Completed(layout));
    }
  }
  return allowed;
}

TEST(EveryLayoutTest, CompilesToProgramsThatTheCheckerAdmits) {
  const Model model = FiveLayers();
  v1::JobSpec spec = TinySpec();
  spec.mutable_data()->set_sequence_length(kSequence);
  const std::vector<v1::Layout> layouts = AllLayouts(model, spec);
  EXPECT_GT(layouts.size(), 1000u);
  const size_t stride = std::getenv("TERRACE_ALL_LAYOUTS") == nullptr ? kStride : 1;
  for (size_t i = 0; i < layouts.size(); i += stride) {
    const auto programs = Compile({.spec = &spec, .model = &model, .layout = layouts[i]});
    ASSERT_TRUE(programs.ok()) << LayoutText(layouts[i]) << ": " << programs.status();
    EXPECT_EQ(programs->size(), layouts[i].pipeline_parallel());
    const absl::Status status = CheckPrograms(*programs);
    EXPECT_TRUE(status.ok()) << LayoutText(layouts[i]) << ", " << layouts[i].context_type() << ": "
                             << status;
  }
}

}  // namespace
}  // namespace terrace
