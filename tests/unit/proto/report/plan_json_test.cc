// SPDX-License-Identifier: Apache-2.0
#include "proto/report/plan_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
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

enum class Is { kText, kCount, kNumber, kTruth, kList, kObject };
void ExpectKey(const Json& json, const std::string& key, Is is) {
  ASSERT_TRUE(json.contains(key)) << key;
  const Json& value = json[key];
  const bool right = is == Is::kText     ? value.is_string()
                     : is == Is::kCount  ? value.is_number_integer()
                     : is == Is::kNumber ? value.is_number()
                     : is == Is::kTruth  ? value.is_boolean()
                     : is == Is::kList   ? value.is_array()
                                         : value.is_object();
  EXPECT_TRUE(right) << key << ": " << value;
}
using Keys = std::vector<std::pair<std::string, Is>>;
void ExpectKeys(const Json& json, const Keys& keys) {
  for (const auto& [key, is] : keys) ExpectKey(json, key, is);
}
void ExpectLayout(const Json& layout) {
  ExpectKeys(layout, {{"dp", Is::kCount},
                      {"tp", Is::kCount},
                      {"pp", Is::kCount},
                      {"interleave", Is::kCount},
                      {"cp", Is::kCount},
                      {"sequence_parallel", Is::kTruth},
                      {"zero", Is::kCount},
                      {"schedule", Is::kText},
                      {"micro_batch", Is::kCount},
                      {"gradient_accumulation", Is::kCount},
                      {"recompute", Is::kText},
                      {"offload", Is::kObject}});
  for (const char* name : {"parameter", "gradient", "optimizer", "activation"}) {
    ExpectKey(layout["offload"], name, Is::kObject);
    double parts = 0;
    for (const char* tier : {"device", "host", "nvme"}) {
      ExpectKey(layout["offload"][name], tier, Is::kNumber);
      parts += layout["offload"][name][tier].get<double>();
    }
    EXPECT_DOUBLE_EQ(parts, 1) << name;
  }
}

// Others build on these names and units.
TEST(PlanJsonTest, HasTheFieldsThatScriptsReadByNameAndKind) {
  const Json json = Json::parse(PlanJson(Tiny()));
  ExpectKeys(json, {{"model", Is::kObject},
                    {"layout", Is::kObject},
                    {"memory", Is::kList},
                    {"time", Is::kObject},
                    {"nvme", Is::kObject},
                    {"fits", Is::kTruth},
                    {"binding", Is::kObject},
                    {"alternatives", Is::kList},
                    {"search", Is::kObject}});
  ExpectKeys(json["model"],
             {{"name", Is::kText}, {"parameters", Is::kCount}, {"layers", Is::kCount}});
  ExpectLayout(json["layout"]);
  ExpectKeys(json["memory"][0], {{"stage", Is::kCount},
                                 {"tier", Is::kText},
                                 {"arena_bytes", Is::kCount},
                                 {"lower_bound_bytes", Is::kCount},
                                 {"paged_bytes", Is::kCount},
                                 {"external_bytes", Is::kCount},
                                 {"at_peak", Is::kObject},
                                 {"max_by_class", Is::kObject}});
  for (const char* key :
       {"step_seconds", "tokens_per_second_per_device", "tflops_per_device", "mfu_ratio",
        "bubble_ratio", "exposed_communication_seconds", "exposed_offload_seconds"}) {
    ExpectKey(json["time"], key, Is::kNumber);
  }
  ExpectKeys(json["nvme"],
             {{"write_bytes_per_step", Is::kCount}, {"write_bytes_per_day", Is::kNumber}});
  ExpectKeys(json["binding"], {{"tier", Is::kText},
                               {"stage", Is::kCount},
                               {"bytes", Is::kCount},
                               {"limit_bytes", Is::kCount},
                               {"instruction", Is::kText},
                               {"largest", Is::kList}});
  ExpectLayout(json["alternatives"][0]["layout"]);
  ExpectKeys(json["alternatives"][0], {{"device_bytes", Is::kCount},
                                       {"host_bytes", Is::kCount},
                                       {"nvme_bytes", Is::kCount},
                                       {"step_seconds", Is::kNumber},
                                       {"fits", Is::kTruth},
                                       {"pareto", Is::kTruth},
                                       {"compiled", Is::kTruth},
                                       {"note", Is::kText}});
  ExpectKeys(json["search"],
             {{"candidates", Is::kCount}, {"compiled", Is::kCount}, {"seconds", Is::kNumber}});
}

TEST(PlanJsonTest, WhatIsWrittenToNvmeIsACountToo) {
  v1::Plan plan = Tiny();
  plan.mutable_nvme()->set_write_bytes_per_step(int64_t{840'000'000'000});
  plan.mutable_nvme()->set_write_bytes_per_day(7.25e12);
  const Json json = Json::parse(PlanJson(plan));
  EXPECT_EQ(json["nvme"]["write_bytes_per_step"], 840'000'000'000);
  EXPECT_EQ(json["nvme"]["write_bytes_per_day"], 7.25e12);
}

TEST(PlanJsonTest, TheModelIsCalledAsTheSpecCallsIt) {
  v1::ModelSpec model;
  const auto name = [&model](const char* config) {
    model.set_config(config);
    return ModelName(model, "llama");
  };
  EXPECT_EQ(name("llama-2-7b"), "llama-2-7b");
  EXPECT_EQ(name("/models/Llama-3-8B/config.json"), "Llama-3-8B");
  EXPECT_EQ(name("/models/small.json"), "small");
  EXPECT_EQ(name("/config.json"), "config");
  EXPECT_EQ(name("(inline)"), "llama");
  EXPECT_EQ(name(""), "llama");
  EXPECT_EQ(Json::parse(PlanJson(Tiny(), {.model_name = "llama-2-7b"}))["model"]["name"],
            "llama-2-7b");
  EXPECT_EQ(Json::parse(PlanJson(Tiny()))["model"]["name"], "llama");
}

TEST(PlanJsonTest, BytesAndCountsAreNumbers) {
  v1::Plan plan = Tiny();
  for (const auto& [cls, bytes] : {std::pair(v1::OPTIMIZER, 60), {v1::ACTIVATION, 70}}) {
    v1::MemoryLine* line = plan.mutable_memory(0)->add_largest();
    line->set_class_(cls);
    line->set_bytes(bytes);
  }
  const Json json = Json::parse(PlanJson(plan, {.search_seconds = 0.5, .error = ""}));
  EXPECT_EQ(json["model"]["parameters"], 7'000'000'000);
  EXPECT_EQ(json["layout"]["dp"], 4);
  EXPECT_EQ(json["layout"]["gradient_accumulation"], 3);
  EXPECT_EQ(json["layout"]["offload"]["optimizer"]["host"], 1.0);
  EXPECT_EQ(json["layout"]["offload"]["parameter"]["device"], 1.0);
  EXPECT_EQ(json["memory"][0]["arena_bytes"], 100);
  EXPECT_EQ(json["memory"][0]["at_peak"]["optimizer"], 60);
  EXPECT_EQ(json["memory"][0]["max_by_class"]["activation"], 70);
  EXPECT_FALSE(json["memory"][0].contains("largest"));
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
