// SPDX-License-Identifier: Apache-2.0
#include "proto/report/layer_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "proto/report/layer_report.h"
#include "proto/report/layout_text.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// Three equal layers of weights; each makes an activation of 10, which the backward pass of that
// layer reads; the head's logits, 50, come between.
class LayerMemoryTest : public testing::Test {
 protected:
  LayerMemoryTest() {
    v1::Arena* arena = program_.add_arenas();
    arena->set_tier(v1::DEVICE);
    arena->set_bytes(1000);
    program_.add_streams()->set_kind(v1::COMPUTE);
    Add("weights.embedding", v1::PARAMETER, 40, v1::PERSISTENT);
    for (int layer = 0; layer < 3; ++layer) {
      Add(absl::StrCat("weights.layer", layer), v1::PARAMETER, 100, v1::PERSISTENT);
    }
    for (int layer = 0; layer < 3; ++layer) Add("scratch", v1::ACTIVATION, 10, v1::STEP);
    Add("mb0.head.logits", v1::ACTIVATION, 50, v1::STEP);
    Add("tokens", v1::INPUT, 4, v1::STEP);
    program_.add_sequences()->set_name("train");
    for (int layer = 0; layer < 3; ++layer) Run(layer, {{4u + layer, v1::WRITE}});
    Run(-1, {{7, v1::WRITE}, {8, v1::WRITE}});
    for (int layer = 2; layer >= 0; --layer) Run(layer, {{4u + layer, v1::READ}});
  }
  void Add(const std::string& name, v1::BufferClass buffer_class, int64_t bytes,
           v1::Lifetime lifetime) {
    v1::Buffer* buffer = program_.add_buffers();
    buffer->set_id(static_cast<uint32_t>(program_.buffers_size() - 1));
    buffer->set_name(name);
    buffer->set_class_(buffer_class);
    buffer->set_bytes(bytes);
    buffer->set_lifetime(lifetime);
    if (lifetime == v1::STEP) buffer->set_sequence("train");
  }
  void Run(int layer, const std::vector<std::pair<uint32_t, v1::Access>>& operands) {
    v1::Sequence* train = program_.mutable_sequences(0);
    v1::Instruction* instruction = train->add_instructions();
    instruction->set_id(static_cast<uint32_t>(train->instructions_size() - 1));
    instruction->set_layer(layer);
    instruction->mutable_compute();
    instruction->set_text("run");
    for (const auto& [buffer, access] : operands) {
      instruction->add_operands()->set_buffer(buffer);
      instruction->mutable_operands(instruction->operands_size() - 1)->set_access(access);
    }
  }
  LiveMemory Live() { return *LiveMemory::Create(&program_); }

  v1::Program program_;
};

TEST_F(LayerMemoryTest, ABufferBelongsToTheLayerOfItsNameOrOfItsMaker) {
  const LiveMemory live = Live();
  const std::vector<LayerMemory> peak = LayersAtPeak(live, 0);
  ASSERT_EQ(peak.size(), 1u);
  EXPECT_EQ(peak[0].instruction, 3u) << "the logits";
  std::vector<std::string> names;
  for (const LayerHeld& layer : peak[0].layers) names.push_back(layer.layer);
  EXPECT_THAT(names, ElementsAre("embedding", "layer 0", "layer 1", "layer 2", "head", "other"));
  EXPECT_EQ(peak[0].layers[1].bytes[v1::PARAMETER], 100);
  EXPECT_EQ(peak[0].layers[1].bytes[v1::ACTIVATION], 10);
  EXPECT_EQ(peak[0].layers[4].bytes[v1::ACTIVATION], 50);
  EXPECT_EQ(peak[0].layers[5].bytes[v1::INPUT], 4);
}

TEST_F(LayerMemoryTest, AnotherInstructionHoldsLess) {
  const LiveMemory live = Live();
  const std::vector<LayerMemory> last = LayersAt(live, 0, 6);
  EXPECT_EQ(last[0].layers[1].bytes[v1::ACTIVATION], 10) << "read there for the last time";
  EXPECT_EQ(last[0].layers[2].bytes[v1::ACTIVATION], 0);
  EXPECT_EQ(last[0].layers[2].most_bytes, 110);
}

TEST_F(LayerMemoryTest, ABucketOfGradientsBelongsToTheLayersWhoseGradientsLieInIt) {
  Add("grads.bucket0", v1::GRADIENT, 200, v1::STEP);
  const auto run = [this](int layer, uint32_t buffer, v1::Access access, int64_t offset,
                          int64_t elements) {
    Run(layer, {{9, access}, {buffer, access == v1::READ ? v1::UPDATE : v1::READ}});
    v1::Operand* gradient =
        program_.mutable_sequences(0)->mutable_instructions()->rbegin()->mutable_operands(0);
    gradient->set_offset(offset);
    gradient->set_dtype(v1::F32);
    gradient->add_shape(elements);
  };
  run(2, 3, v1::WRITE, 0, 20);    // 80 bytes of layer 2
  run(1, 2, v1::WRITE, 80, 10);   // 40 of layer 1
  run(-1, 1, v1::READ, 120, 15);  // 60 that update the weights of layer 0; 20 are nobody's
  run(-1, 2, v1::READ, 80, 10);
  const LiveMemory live = Live();
  const LayerMemory at = LayersAt(live, 0, 8).at(0);
  EXPECT_EQ(at.layers[1].bytes[v1::GRADIENT], 60);
  EXPECT_EQ(at.layers[2].bytes[v1::GRADIENT], 40);
  EXPECT_EQ(at.layers[3].bytes[v1::GRADIENT], 80);
  EXPECT_EQ(at.layers[5].layer, "other");
  EXPECT_EQ(at.layers[5].bytes[v1::GRADIENT], 20);
}

TEST_F(LayerMemoryTest, LayersThatHoldTheSameOfAClassAreOneHotSpotThoughTheyDifferInOthers) {
  Add("layer1.extra", v1::GRADIENT, 70, v1::PERSISTENT);
  const LiveMemory live = Live();
  v1::Layout layout;
  layout.set_recompute("block");
  const std::vector<HotSpot> spots = HotSpots(LayersAtPeak(live, 0).at(0), layout);
  ASSERT_GE(spots.size(), 2u);
  EXPECT_EQ(spots[0].layer, "layers 0 to 2");
  EXPECT_EQ(spots[0].bytes, 300);
  EXPECT_EQ(spots[1].layer, "layer 1");
  EXPECT_EQ(spots[1].buffer_class, v1::GRADIENT);
}

TEST_F(LayerMemoryTest, EqualLayersAreOneLineAndHotSpotsComeWithAdvice) {
  const LiveMemory live = Live();
  const std::vector<LayerMemory> peak = LayersAtPeak(live, 0);
  v1::Layout layout;
  layout.set_recompute("none");
  layout.set_micro_batch(1);
  layout.set_data_parallel(2);
  const std::string text = LayerText(peak, layout, "at the peak");
  EXPECT_THAT(text, AllOf(HasSubstr("layers 0 to 2, parameter: 300 B, 70.8 %; layout.zero: 3"),
                          HasSubstr("head, activation: 50 B, 11.8 %; layout.recompute: block")));
  const auto json = nlohmann::json::parse(LayerJson(peak, layout));
  EXPECT_EQ(json["layers"][0]["hot_spots"][0]["bytes"], 300);
  EXPECT_EQ(json["layers"][0]["layers"].size(), 6u);
}

TEST_F(LayerMemoryTest, WhatStatesAreBroughtInOnTheHostIsLoweredByTheirPieces) {
  v1::Layout layout;
  layout.mutable_offload()->mutable_optimizer()->set_nvme(1);
  LayerMemory memory = {.tier = v1::HOST};
  memory.layers.push_back({.layer = "layer 3"});
  memory.layers[0].bytes[v1::COMMUNICATION] = 100;
  EXPECT_EQ(HotSpots(memory, layout).at(0).advice,
            "a smaller layout.chunk_bytes brings states in smaller pieces");
}

// Some layouts of every way to hold memory.
std::vector<v1::Layout> SomeLayouts() {
  std::vector<v1::Layout> layouts;
  for (uint32_t bits = 0; bits < 4 * 2 * 2 * 3 * 16; ++bits) {
    v1::Layout layout;
    layout.set_zero_stage(bits % 4);
    layout.set_data_parallel(1 + bits / 4 % 2);
    layout.set_micro_batch(1 + bits / 8 % 2);
    constexpr const char* kRecompute[] = {"none", "selective", "block"};
    layout.set_recompute(kRecompute[bits / 16 % 3]);
    layout.set_device(bits % 5 == 0 ? "cpu" : "cuda");
    v1::Offload* offload = layout.mutable_offload();
    uint32_t away = bits / 48;  // a bit a class
    for (v1::TierShares* shares : {offload->mutable_parameter(), offload->mutable_gradient(),
                                   offload->mutable_optimizer(), offload->mutable_activation()}) {
      const bool is_away = away % 2 == 1, on_nvme = layouts.size() % 3 == 0;
      shares->set_device(!is_away);
      shares->set_host(is_away && !on_nvme);
      shares->set_nvme(is_away && on_nvme);
      away /= 2;
    }
    layouts.push_back(std::move(layout));
  }
  return layouts;
}

// "layout.KEY: VALUE ..." names another value than the layout has.
void ExpectIsAChange(const std::string& advice, const v1::Layout& layout) {
  if (advice.starts_with("a smaller layout.micro_batch")) {
    EXPECT_GT(layout.micro_batch(), 1u);
    return;
  }
  if (advice.starts_with("a smaller layout.chunk_bytes")) {
    EXPECT_GT(layout.offload().optimizer().host() + layout.offload().optimizer().nvme(), 0);
    return;
  }
  ASSERT_TRUE(advice.starts_with("layout.")) << advice;
  const size_t colon = advice.find(": ");
  ASSERT_NE(colon, std::string::npos) << advice;
  const std::string key = advice.substr(7, colon - 7);
  const std::string value = advice.substr(colon + 2, advice.find(' ', colon + 2) - colon - 2);
  for (const auto& [name, present] : LayoutWords(layout)) {
    if (name != key) continue;
    EXPECT_NE(present, value) << advice;
    EXPECT_TRUE(key != "zero" || present < value) << advice;
    return;
  }
  ADD_FAILURE() << "no such key: " << advice;
}

TEST_F(LayerMemoryTest, AdviceNeverNamesWhatIsSoAlready) {
  for (const v1::BufferClass buffer_class :
       {v1::PARAMETER, v1::GRADIENT, v1::OPTIMIZER, v1::ACTIVATION, v1::WORKSPACE}) {
    for (const v1::Tier tier : {v1::DEVICE, v1::HOST, v1::NVME}) {
      LayerMemory memory = {.tier = tier};
      memory.layers.push_back({.layer = "head"});
      memory.layers[0].bytes[buffer_class] = 100;
      int advised = 0;
      for (const v1::Layout& layout : SomeLayouts()) {
        for (const HotSpot& spot : HotSpots(memory, layout)) {
          if (spot.advice.empty()) continue;
          ++advised;
          ExpectIsAChange(spot.advice, layout);
          const bool to_host = spot.advice.find(": host") != std::string::npos;
          EXPECT_FALSE(to_host && (tier != v1::DEVICE || layout.device() == "cpu"))
              << spot.advice << ": it lies in the host's memory already";
          const bool to_nvme = spot.advice.find(": nvme") != std::string::npos;
          const bool is_on_host =
              tier == v1::HOST || (tier == v1::DEVICE && layout.device() == "cpu");
          EXPECT_FALSE(to_nvme && !is_on_host) << spot.advice;
          // Rules of layouts refuse what is farther away than the states.
          const v1::TierShares& optimizer = layout.offload().optimizer();
          const bool is_state =
              spot.advice.starts_with("layout.offload.optimizer") || buffer_class == v1::ACTIVATION;
          EXPECT_TRUE(!to_nvme || is_state || optimizer.nvme() > 0) << spot.advice;
          const bool brings_states = spot.advice.find("together with") != std::string::npos;
          EXPECT_TRUE(!to_host || is_state || brings_states ||
                      optimizer.host() + optimizer.nvme() > 0)
              << spot.advice;
        }
      }
      EXPECT_GT(advised, 0) << v1::BufferClass_Name(buffer_class);
    }
  }
}

}  // namespace
}  // namespace terrace
