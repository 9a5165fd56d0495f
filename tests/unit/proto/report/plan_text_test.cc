// SPDX-License-Identifier: Apache-2.0
#include "proto/report/plan_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_split.h"
#include "coordinator/hardware/catalogue.h"
#include "proto/report/layout_text.h"

namespace terrace {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

v1::Plan Tiny() {
  v1::Plan plan;
  plan.set_job("tiny");
  plan.set_fits(true);
  plan.mutable_model()->set_family("gpt2");
  plan.mutable_model()->set_parameters(124439808);
  plan.mutable_model()->set_sequence_length(1024);
  plan.mutable_layout()->set_ranks(1);
  plan.mutable_layout()->set_nodes(1);
  plan.mutable_layout()->set_data_parallel(1);
  plan.mutable_layout()->set_micro_batch(4);
  plan.mutable_layout()->set_micro_batches(2);
  v1::StageMemory* memory = plan.add_memory();
  memory->set_arena_bytes(3 << 20);
  memory->set_lower_bound_bytes(3 << 20);
  memory->set_external_bytes(1 << 20);
  memory->set_limit_bytes(8 << 20);
  v1::MemoryLine* line = memory->add_lines();
  line->set_tier(v1::DEVICE);
  line->set_class_(v1::OPTIMIZER);
  line->set_bytes(3 << 20);
  line = memory->add_lines();
  line->set_tier(v1::DEVICE);
  line->set_class_(v1::EXTERNAL);
  line->set_bytes(1 << 20);
  plan.mutable_time()->set_step_seconds(0.0125);
  plan.mutable_time()->set_total_seconds(3 * 3600);
  plan.mutable_time()->set_tokens_per_second(12345.6);
  *plan.mutable_profile() = ProfileOf(*FindDevice("H100-80GB"));
  plan.set_binding_constraint("compute: the device computes");
  return plan;
}

TEST(PlanTextTest, RemarksOnTheModelAreShown) {
  v1::Plan plan = Tiny();
  EXPECT_THAT(PlanText(plan), Not(HasSubstr("note")));
  plan.add_remarks("model.config: n_layers: got 2, which nothing reads; is n_layer meant?");
  EXPECT_THAT(PlanText(plan), HasSubstr("\nnote   model.config: n_layers: got 2"));
}

TEST(PlanTextTest, APlanOnPaperSaysHowFarOffItMayBeAndWhatItHangsOn) {
  v1::Plan plan = Tiny();
  EXPECT_EQ(UncertaintyText(plan), "");
  v1::Uncertainty* uncertainty = plan.mutable_time()->mutable_uncertainty();
  uncertainty->set_low_seconds(0.9);
  uncertainty->set_high_seconds(1.2);
  uncertainty->set_coverage(0.8);
  uncertainty->set_runs(83);
  uncertainty->set_rate("matmul, bf16");
  uncertainty->set_rate_share(0.7);
  EXPECT_THAT(
      UncertaintyText(plan),
      ContainsRegex(
          "a step is expected to take .* to .*: that near to their plans were 80 % of 83 "
          "published runs .*; it hangs on the rate of matmul, bf16 most: 10 % less of it makes "
          "a step about 8 % longer"));
  EXPECT_THAT(PlanText(plan), HasSubstr("a step is expected"));
}

TEST(PlanTextTest, RatesAreThoseOfSingleLayersToo) {
  v1::Plan plan = Tiny();
  plan.mutable_layout()->set_precision("bf16");
  EXPECT_THAT(PlanText(plan), Not(HasSubstr("fp8")));
  for (const char* precision : {"bf16", "fp8"}) {
    v1::LayerPrecision* layer = plan.mutable_layout()->add_layer_precisions();
    layer->set_attention("bf16");
    layer->set_mlp(precision);
  }
  plan.mutable_layout()->set_head_precision("tf32");
  EXPECT_THAT(PlanText(plan),
              ContainsRegex("TFLOP/s tf32,\\s[^;]*FLOP/s bf16,\\s[^;]*FLOP/s fp8,"));
}

TEST(PlanTextTest, Tf32IsNamedWhereItIsUsed) {
  v1::Plan plan = Tiny();
  EXPECT_THAT(PlanText(plan), Not(HasSubstr("tf32")));
  plan.mutable_layout()->set_precision("tf32");
  EXPECT_THAT(PlanText(plan), HasSubstr("67.00 TFLOP/s f32, 494.70 TFLOP/s tf32,"));
}

TEST(PlanTextTest, PagesAreNamedWhereThereAreAny) {
  v1::Plan plan = Tiny();
  EXPECT_THAT(PlanText(plan), HasSubstr("0.00 % over the lower bound\n"));
  plan.mutable_memory(0)->set_paged_bytes(5 << 20);
  EXPECT_THAT(PlanText(plan), HasSubstr("0.00 % over the lower bound, with 5.0 MiB of pages at "
                                        "second addresses\n"));
  *plan.add_memory() = plan.memory(0);
  plan.mutable_memory(0)->clear_paged_bytes();
  EXPECT_THAT(PlanText(plan), HasSubstr("of pages at second addresses at most"));
}

TEST(PlanTextTest, ShowsModelBatchMemoryAndTime) {
  const std::string text = PlanText(Tiny());
  EXPECT_THAT(text, HasSubstr("124,439,808 parameters"));
  EXPECT_THAT(text, HasSubstr("2 micro-batches of 4 x 1,024 tokens a rank, 8,192 tokens a step"));
  EXPECT_THAT(text,
              HasSubstr("optimizer          3.0 MiB  75.0 %  ##############################\n"));
  EXPECT_THAT(text, HasSubstr("outside the arena"));
  EXPECT_THAT(text, HasSubstr("4.0 MiB          of 8.0 MiB, 50.0 %"));
  EXPECT_THAT(text, HasSubstr("arena 3,145,728 bytes, 0.00 % over the lower bound"));
  EXPECT_THAT(text, HasSubstr("12.5 ms"));
  EXPECT_THAT(text, HasSubstr("12,346 tokens/s"));
  EXPECT_THAT(text, HasSubstr("3.0 h"));
  EXPECT_THAT(text, HasSubstr("on H100-80GB (catalogue): 67.00 TFLOP/s f32, 989.40 TFLOP/s bf16,"));
  EXPECT_THAT(text, HasSubstr("limit  compute: the device computes"));
  EXPECT_THAT(text, Not(HasSubstr("alternatives")));
}

TEST(PlanTextTest, EachAlternativeSaysWhatDiffersAndWhyItIsNotChosen) {
  v1::Plan plan = Tiny();
  plan.mutable_search()->set_candidates(12345);
  plan.mutable_search()->set_compiled(4);
  v1::Alternative* other = plan.add_alternatives();
  *other->mutable_layout() = plan.layout();
  other->mutable_layout()->set_micro_batch(8);
  other->set_step_seconds(0.02);
  other->set_device_bytes(5 << 20);
  other->set_host_bytes(6 << 20);
  other->set_note("does not fit: stage 0 needs 9.0 MiB of 8.0 MiB on the device, 1.0 MiB too much");
  *plan.add_alternatives() = *other;  // by closed form: only in the JSON
  plan.mutable_alternatives(0)->set_compiled(true);
  EXPECT_THAT(PlanText(plan),
              HasSubstr("alternatives, and why not (12,345 layouts compared, 4 compiled)\n"
                        "  1  20 ms a step, device 5.0 MiB, host 6.0 MiB\n"
                        "     micro_batch 8\n"
                        "     does not fit: stage 0 needs 9.0 MiB of 8.0 MiB on the device, 1.0 "
                        "MiB too\n     much\n"));
  EXPECT_THAT(PlanText(plan), Not(HasSubstr("  2  ")));
  plan.set_fits(false);
  EXPECT_THAT(PlanText(plan), HasSubstr("\nwhat would fit (12,345"));
}

// As wide as the widest of what is planned: 16,384 ranks, long names of layouts.
TEST(PlanTextTest, LinesFitATerminal) {
  v1::Plan plan = Tiny();
  v1::Layout* layout = plan.mutable_layout();
  layout->set_ranks(16384);
  layout->set_nodes(2048);
  layout->set_pipeline_parallel(16);
  layout->set_schedule("interleaved");
  layout->set_interleave(8);
  layout->set_recompute("selective");
  for (int i = 0; i < 126; ++i) {
    layout->add_recompute_layers(i % 3 == 0 ? "block" : "selective");
  }
  layout->mutable_offload()->mutable_optimizer()->set_host(0.25);
  layout->mutable_offload()->mutable_optimizer()->set_nvme(0.75);
  plan.set_binding_constraint(plan.binding_constraint() + std::string(30, ' ') + "the device " +
                              "computes during 99 % of the step and nothing else is nearer");
  plan.clear_memory();
  for (uint32_t stage = 0; stage < 16; ++stage) {
    v1::StageMemory* memory = plan.add_memory();
    memory->set_stage(stage);
    memory->set_tier(v1::DEVICE);
    memory->set_arena_bytes(int64_t{900} << 30);
    memory->set_limit_bytes(int64_t{800} << 30);
    for (const v1::BufferClass cls : {v1::PARAMETER, v1::GRADIENT, v1::OPTIMIZER, v1::ACTIVATION}) {
      v1::MemoryLine* line = memory->add_lines();
      line->set_class_(cls);
      line->set_bytes(int64_t{200} << 30);
    }
  }
  for (int i = 0; i < 70; ++i) plan.add_program_sha256(std::string(64, 'a'));
  *plan.add_alternatives()->mutable_layout() = *layout;
  plan.mutable_alternatives(0)->mutable_layout()->set_recompute("none");
  plan.mutable_alternatives(0)->mutable_layout()->clear_recompute_layers();
  v1::Plan fits = plan;
  for (v1::StageMemory& memory : *fits.mutable_memory())
    memory.set_limit_bytes(int64_t{1000} << 30);
  for (const std::string& text : {PlanText(plan), PlanText(fits), PlanText(Tiny())}) {
    for (const absl::string_view line : absl::StrSplit(text, '\n')) {
      EXPECT_LE(line.size(), 80u) << line;
    }
  }
}

TEST(PlanTextTest, StagesAreComparedLineByLineWithWhatIsOverTheBudget) {
  v1::Plan plan = Tiny();
  plan.mutable_layout()->set_ranks(8);
  plan.mutable_layout()->set_pipeline_parallel(2);
  plan.mutable_memory(0)->set_tier(v1::DEVICE);
  *plan.add_memory() = plan.memory(0);
  v1::StageMemory* last = plan.mutable_memory(1);
  last->set_stage(1);
  const std::string fits = PlanText(plan);
  EXPECT_THAT(fits, HasSubstr("memory of a rank at the peak, device, in MiB; budget 8.0\n"));
  EXPECT_THAT(fits, ContainsRegex("stage +ranks +parameter +gradient +optimizer +activation +other "
                                  "+total\n"));
  EXPECT_THAT(fits, ContainsRegex("0 +0-3 +0.0 +0.0 +3.0 +0.0 +1.0 +4.0\n"));
  EXPECT_THAT(fits, ContainsRegex("1 +4-7 +0.0 +0.0 +3.0 +0.0 +1.0 +4.0\n"));
  last->set_arena_bytes(9 << 20);
  last->mutable_lines(0)->set_bytes(9 << 20);
  const std::string over = PlanText(plan);
  EXPECT_THAT(over, ContainsRegex("stage +parameter +gradient +optimizer +activation +other +total "
                                  "+over\n"));
  EXPECT_THAT(over, ContainsRegex("\n +0 +0.0 +0.0 +3.0 +0.0 +1.0 +4.0\n"));
  EXPECT_THAT(over, ContainsRegex("\n +1 +0.0 +0.0 +9.0 +0.0 +1.0 +10.0 +2.0\n"));
}

TEST(PlanTextTest, OfManyStagesTheFullestIsAmongThoseShown) {
  v1::Plan plan = Tiny();
  plan.mutable_layout()->set_ranks(64);
  plan.mutable_layout()->set_pipeline_parallel(64);
  plan.clear_memory();
  for (uint32_t stage = 0; stage < 64; ++stage) {
    v1::StageMemory* memory = plan.add_memory();
    memory->set_stage(stage);
    memory->set_tier(v1::DEVICE);
    memory->set_arena_bytes((stage == 40 ? 3 : 2) << 20);
  }
  const std::string text = PlanText(plan);
  EXPECT_THAT(text, ContainsRegex("\n +40 +40 "));
  EXPECT_THAT(text, ContainsRegex("\n +63 +63 "));
  EXPECT_THAT(text, HasSubstr("46 more stages are in -o json"));
}

TEST(PlanTextTest, AnEmptyPlanPrintsToo) { EXPECT_THAT(PlanText({}), HasSubstr("plan")); }

TEST(PlanTextTest, TheLayoutNamesWhatIsNotAsUsual) {
  v1::Plan plan = Tiny();
  v1::Layout* layout = plan.mutable_layout();
  layout->set_tensor_parallel(1);
  layout->set_pipeline_parallel(1);
  layout->set_context_parallel(1);
  layout->set_recompute("none");
  layout->set_precision("bf16");
  EXPECT_THAT(PlanText(plan), HasSubstr("dp 1, tp 1, pp 1, cp 1, zero 0, recompute none, bf16\n"));
  layout->set_data_parallel(8);
  layout->set_tensor_parallel(2);
  layout->set_sequence_parallel(true);
  layout->set_pipeline_parallel(4);
  layout->set_schedule("interleaved");
  layout->set_interleave(2);
  for (uint32_t layers : {1, 2}) layout->add_stage_layers(layers);
  layout->set_context_parallel(2);
  layout->set_context_type("ulysses");
  layout->set_zero_stage(3);
  layout->set_shard_size(4);
  layout->set_persistent_parameters(10000);
  layout->set_recompute("every");
  layout->set_recompute_every(2);
  layout->set_reduce_format("bf16");
  v1::Alternative* other = plan.add_alternatives();
  *other->mutable_layout() = plan.layout();
  other->set_compiled(true);
  *plan.add_alternatives() = *other;
  plan.mutable_alternatives(1)->mutable_layout()->set_zero_stage(1);
  EXPECT_EQ(LayoutText(*layout),
            "dp 8, tp 2 + sequence, pp 4 (interleaved, 2 chunks a stage, layers "
            "1, 2), cp 2 (ulysses), zero 3 (shards over 4 ranks, whole below "
            "10,000 elements), recompute every 2 layers, bf16, gradients sent in bf16");
  const std::string text = PlanText(plan);
  const auto with_format = [&](const char* format, uint32_t zero) {
    v1::Layout formatted = *layout;
    formatted.set_parameter_format(format);
    formatted.set_zero_stage(zero);
    return LayoutText(formatted);
  };
  EXPECT_THAT(with_format("f32", 3), HasSubstr("bf16, weights in f32, gradients"));
  EXPECT_THAT(with_format("bf16", 0), HasSubstr("bf16, weights in bf16, gradients"));
  EXPECT_THAT(with_format("bf16", 3), HasSubstr("bf16, gradients"));
  EXPECT_THAT(with_format("f32", 0), HasSubstr("bf16, gradients"));
  EXPECT_THAT(text, HasSubstr("the same layout\n"));
  EXPECT_THAT(text, HasSubstr("     zero 1\n"));
}

TEST(LayoutTextTest, LayersThatAreAlikeAreCounted) {
  v1::Layout layout, other;
  for (const char* policy : {"block", "block", "none"}) layout.add_recompute_layers(policy);
  for (const uint32_t layers : {3, 4, 4, 4, 3}) layout.add_stage_layers(layers);
  layout.set_pipeline_parallel(5);
  EXPECT_THAT(LayoutText(layout), HasSubstr("(by layer: 2 block, 1 none)"));
  EXPECT_THAT(LayoutText(layout), HasSubstr("pp 5 (1f1b, layers 3, 3 x 4, 3)"));
  EXPECT_THAT(Differences(other, layout),
              testing::ElementsAre("pp 5", "recompute_layers 2 block, 1 none"));
  for (int i = 0; i < 20; ++i) other.add_recompute_layers(i % 2 == 0 ? "none" : "block");
  EXPECT_THAT(LayoutText(other), HasSubstr("10 none and 10 block in turns"));
}

TEST(PlanTextTest, TiersAreToldOnlyWhereTheyAreUsed) {
  v1::Plan plan = Tiny();
  const std::string plain = PlanText(plan);
  EXPECT_THAT(plain, Not(HasSubstr("offload")));
  EXPECT_THAT(plain, Not(HasSubstr("NVMe")));
  v1::Offload* offload = plan.mutable_layout()->mutable_offload();
  offload->mutable_parameter()->set_device(1);
  offload->mutable_gradient()->set_host(1);
  offload->mutable_optimizer()->set_host(0.25);
  offload->mutable_optimizer()->set_nvme(0.75);
  plan.mutable_memory(0)->set_tier(v1::DEVICE);
  *plan.add_memory() = plan.memory(0);
  plan.mutable_memory(1)->set_tier(v1::NVME);
  plan.mutable_nvme()->set_read_bytes_per_step(2 << 20);
  plan.mutable_nvme()->set_write_bytes_per_step(1 << 20);
  plan.mutable_nvme()->set_write_bytes_per_day(7.25e12);
  plan.mutable_nvme()->set_drive_life_days(1234);
  plan.set_break_even_tokens(46000);
  const std::string text = PlanText(plan);
  EXPECT_THAT(text,
              HasSubstr("offload gradient\n               host, optimizer host 25 % + nvme 75 %"));
  EXPECT_THAT(text, HasSubstr("memory of a rank at the peak, NVMe\n"));
  EXPECT_THAT(text, HasSubstr("exposed offload"));
  EXPECT_THAT(text, HasSubstr("from 46,000 tokens a step on"));
  EXPECT_THAT(text,
              HasSubstr("reads 2.0 MiB and writes 1.0 MiB a step, 7.25 TB a day; the\n  drives "
                        "last 1,234 days"));
}

}  // namespace
}  // namespace terrace
