// SPDX-License-Identifier: Apache-2.0
#include "proto/precision_place.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace terrace {
namespace {

constexpr int64_t kLayers = 8;

std::vector<int64_t> LayersOf(const std::string& text) {
  const auto place = ParsePrecisionPlace(text);
  EXPECT_TRUE(place.has_value()) << text;
  std::vector<int64_t> layers;
  for (int64_t layer = 0; place && layer < kLayers; ++layer) {
    if (place->HasLayer(layer, kLayers)) layers.push_back(layer);
  }
  return layers;
}

using Layers = std::vector<int64_t>;

TEST(PrecisionPlaceTest, SpansCountFromBothEnds) {
  EXPECT_EQ(LayersOf("3"), (Layers{3}));
  EXPECT_EQ(LayersOf("0-2"), (Layers{0, 1, 2}));
  EXPECT_EQ(LayersOf("0-1, 5,7"), (Layers{0, 1, 5, 7}));
  EXPECT_EQ(LayersOf("first 2"), (Layers{0, 1}));
  EXPECT_EQ(LayersOf("last 1"), (Layers{7}));
  EXPECT_EQ(LayersOf("first 1, last 2"), (Layers{0, 6, 7}));
  EXPECT_EQ(LayersOf("mlp").size(), 8u);
}

TEST(PrecisionPlaceTest, ModulesStandAloneOrBehindLayers) {
  EXPECT_EQ(ParsePrecisionPlace("attention")->module, PrecisionModule::kAttention);
  EXPECT_EQ(ParsePrecisionPlace("lm_head")->module, PrecisionModule::kLmHead);
  EXPECT_EQ(ParsePrecisionPlace("embedding")->module, PrecisionModule::kEmbedding);
  EXPECT_EQ(ParsePrecisionPlace("norms")->module, PrecisionModule::kNorms);
  EXPECT_EQ(ParsePrecisionPlace("2")->module, PrecisionModule::kLayer);
  EXPECT_EQ(ParsePrecisionPlace("last 2.mlp")->module, PrecisionModule::kMlp);
  EXPECT_EQ(LayersOf("0, last 2.mlp"), (Layers{0, 6, 7}));
}

TEST(PrecisionPlaceTest, NarrowerPlacesCount) {
  const auto rank = [](const char* text) { return ParsePrecisionPlace(text)->Rank(); };
  EXPECT_LT(rank("mlp"), rank("0-3"));
  EXPECT_LT(rank("0-3"), rank("0-3.mlp"));
}

TEST(PrecisionPlaceTest, TheLeastModelThatHasThem) {
  EXPECT_EQ(ParsePrecisionPlace("0-3, 9")->LeastLayers(), 10);
  EXPECT_EQ(ParsePrecisionPlace("last 4")->LeastLayers(), 4);
  EXPECT_EQ(ParsePrecisionPlace("mlp")->LeastLayers(), 0);
}

TEST(PrecisionPlaceTest, AnythingElseIsNoPlace) {
  for (const char* text : {"", "layers", "-1", "3-1", "1-2-3", "first", "first 0", "last -1", "1.5",
                           "0-1.lm_head", "0-1.", ".mlp", "1,", "99999999999", "first 1 2", "0x1"})
    EXPECT_FALSE(ParsePrecisionPlace(text).has_value()) << text;
}

}  // namespace
}  // namespace terrace
