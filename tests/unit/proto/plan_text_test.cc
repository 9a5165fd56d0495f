// SPDX-License-Identifier: Apache-2.0
#include "proto/plan_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coordinator/planner/catalogue.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;

v1::Plan Tiny() {
  v1::Plan plan;
  plan.set_job("tiny");
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

TEST(PlanTextTest, ShowsModelBatchMemoryAndTime) {
  const std::string text = PlanText(Tiny());
  EXPECT_THAT(text, HasSubstr("124,439,808 parameters"));
  EXPECT_THAT(text, HasSubstr("2 micro-batches of 4 x 1,024 tokens a rank, 8,192 tokens a step"));
  EXPECT_THAT(
      text,
      HasSubstr("device  optimizer          3.0 MiB  75.0 %  ##############################\n"));
  EXPECT_THAT(text, HasSubstr("outside the arena"));
  EXPECT_THAT(text, HasSubstr("4.0 MiB          of 8.0 MiB"));
  EXPECT_THAT(text, HasSubstr("arena 3,145,728 bytes, 0.00 % over the lower bound"));
  EXPECT_THAT(text, HasSubstr("12.5 ms  12,346 tokens/s"));
  EXPECT_THAT(text, HasSubstr("3.0 h"));
  EXPECT_THAT(text, HasSubstr("on H100-80GB (catalogue): 67.00 TFLOP/s f32, 989.40 TFLOP/s bf16"));
  EXPECT_THAT(text, HasSubstr("limit  compute: the device computes"));
  EXPECT_THAT(text, Not(HasSubstr("alternatives")));
}

TEST(PlanTextTest, ListsAlternativesWithTheirNotes) {
  v1::Plan plan = Tiny();
  v1::Alternative* other = plan.add_alternatives();
  other->mutable_layout()->set_micro_batch(8);
  other->set_note("does not fit");
  EXPECT_THAT(PlanText(plan), HasSubstr("alternatives\n  layout"));
  EXPECT_THAT(PlanText(plan), HasSubstr("does not fit"));
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
  layout->set_communication_dtype("bf16");
  v1::Alternative* other = plan.add_alternatives();
  *other->mutable_layout() = plan.layout();
  other = plan.add_alternatives();
  *other->mutable_layout() = plan.layout();
  other->mutable_layout()->set_zero_stage(1);
  const std::string text = PlanText(plan);
  EXPECT_THAT(text, HasSubstr("dp 8, tp 2 + sequence, pp 4 (interleaved, 2 chunks a stage, layers "
                              "1 2), cp 2 (ulysses), zero 3 (shards over 4 ranks, whole below "
                              "10,000 elements), recompute every 2 layers, bf16, gradients sent in "
                              "bf16\n"));
  EXPECT_THAT(text, HasSubstr("the same"));
  EXPECT_THAT(text, HasSubstr("zero 1 (shards"));
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
  EXPECT_THAT(text, HasSubstr("offload gradient host, optimizer host 25 % + nvme 75 %"));
  EXPECT_THAT(text, HasSubstr("memory of a rank at the peak, nvme\n"));
  EXPECT_THAT(text, HasSubstr("exposed offload"));
  EXPECT_THAT(text, HasSubstr("from 46,000 tokens a step on"));
  EXPECT_THAT(text, HasSubstr("reads 2.0 MiB and writes 1.0 MiB a step, 7.25 TB a day; the drives "
                              "last 1,234 days"));
}

}  // namespace
}  // namespace terrace
