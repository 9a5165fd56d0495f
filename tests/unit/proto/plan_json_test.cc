// SPDX-License-Identifier: Apache-2.0
#include "proto/plan_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace terrace {
namespace {

using Json = nlohmann::json;

v1::Plan Tiny() {
  v1::Plan plan;
  plan.mutable_model()->set_family("llama");
  plan.mutable_model()->set_parameters(7'000'000'000);
  plan.mutable_layout()->set_data_parallel(4);
  plan.mutable_layout()->set_tensor_parallel(2);
  plan.mutable_layout()->set_micro_batches(3);
  plan.mutable_layout()->mutable_offload()->mutable_optimizer()->set_host(1);
  v1::StageMemory* memory = plan.add_memory();
  memory->set_tier(v1::DEVICE);
  memory->set_arena_bytes(100);
  v1::MemoryLine* line = memory->add_lines();
  line->set_class_(v1::OPTIMIZER);
  line->set_bytes(60);
  plan.mutable_time()->set_mfu(0.4);
  plan.mutable_binding()->set_stage(1);
  plan.add_alternatives()->mutable_layout()->set_data_parallel(8);
  plan.mutable_search()->set_candidates(12345);
  plan.set_fits(true);
  return plan;
}

void ExpectKeys(const Json& json, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) EXPECT_TRUE(json.contains(key)) << key;
}

// Others build on these names.
TEST(PlanJsonTest, HasTheFieldsThatScriptsReadByName) {
  const Json json = Json::parse(PlanJson(Tiny()));
  ExpectKeys(json, {"model", "layout", "memory", "time", "nvme", "fits", "binding", "alternatives",
                    "search"});
  ExpectKeys(json["model"], {"name", "parameters", "layers"});
  ExpectKeys(json["layout"],
             {"dp", "tp", "pp", "interleave", "cp", "sequence_parallel", "zero", "schedule",
              "micro_batch", "gradient_accumulation", "recompute", "offload"});
  ExpectKeys(json["layout"]["offload"], {"parameter", "gradient", "optimizer", "activation"});
  ExpectKeys(json["memory"][0], {"stage", "tier", "arena_bytes", "lower_bound_bytes",
                                 "external_bytes", "at_peak", "max_by_class"});
  ExpectKeys(json["time"],
             {"step_seconds", "tokens_per_second_per_device", "tflops_per_device", "mfu_ratio",
              "bubble_ratio", "exposed_communication_seconds", "exposed_offload_seconds"});
  ExpectKeys(json["nvme"], {"write_bytes_per_step", "write_bytes_per_day"});
  ExpectKeys(json["binding"], {"tier", "stage", "bytes", "limit_bytes", "instruction"});
  ExpectKeys(json["search"], {"candidates", "compiled", "seconds"});
}

TEST(PlanJsonTest, BytesAndCountsAreNumbers) {
  const Json json =
      Json::parse(PlanJson(Tiny(), {.search_seconds = 0.5,
                                    .max_by_class = {{{v1::OPTIMIZER, 60}, {v1::ACTIVATION, 70}}},
                                    .error = ""}));
  EXPECT_EQ(json["model"]["parameters"], 7'000'000'000);
  EXPECT_EQ(json["layout"]["dp"], 4);
  EXPECT_EQ(json["layout"]["gradient_accumulation"], 3);
  EXPECT_EQ(json["layout"]["offload"]["optimizer"]["host"], 1.0);
  EXPECT_EQ(json["layout"]["offload"]["parameter"]["device"], 1.0);
  EXPECT_EQ(json["memory"][0]["arena_bytes"], 100);
  EXPECT_EQ(json["memory"][0]["at_peak"]["optimizer"], 60);
  EXPECT_EQ(json["memory"][0]["max_by_class"]["activation"], 70);
  EXPECT_EQ(json["alternatives"][0]["layout"]["dp"], 8);
  EXPECT_EQ(json["search"]["candidates"], 12345);
  EXPECT_EQ(json["search"]["seconds"], 0.5);
  EXPECT_FALSE(json.contains("error"));
}

TEST(PlanJsonTest, ARefusedPlanSaysWhyBesideThePlan) {
  v1::Plan plan = Tiny();
  plan.set_fits(false);
  const Json json = Json::parse(PlanJson(plan, {.error = "needs 2 of 1"}));
  EXPECT_EQ(json["fits"], false);
  EXPECT_EQ(json["error"]["message"], "needs 2 of 1");
}

TEST(PlanJsonTest, TheSamePlanGivesTheSameBytes) { EXPECT_EQ(PlanJson(Tiny()), PlanJson(Tiny())); }

}  // namespace
}  // namespace terrace
