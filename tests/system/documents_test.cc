// Rows of several documents: twenty steps follow torch with each document alone
// (tests/golden/pytorch/make_documents.py), on every kind of layout.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/system/layout_kinds.h"
#include "tests/system/recorded_steps.h"

namespace terrace {
namespace {

using Json = nlohmann::ordered_json;
using Lengths = std::vector<std::vector<int32_t>>;  // of the documents of each row

const std::string kFolder = TERRACE_GOLDEN_FOLDER;

std::vector<int32_t> StartsOf(const Lengths& rows) {
  std::vector<int32_t> starts;
  for (const std::vector<int32_t>& lengths : rows) {
    int32_t start = 0;
    for (const int32_t length : lengths) {
      starts.insert(starts.end(), length, start);
      start += length;
    }
  }
  return starts;
}

class DocumentsTest : public testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Families, DocumentsTest, testing::Values("gpt2", "llama", "mistral"),
                         [](const auto& info) { return info.param; });

TEST_P(DocumentsTest, TwentyStepsFollowTorch) {
  const std::string& family = GetParam();
  std::ifstream file(kFolder + "/documents.json");
  const Json recorded = Json::parse(file);
  auto golden = ReadGolden(kFolder + "/" + family);
  ASSERT_TRUE(golden.ok()) << golden.status();
  golden->train = TrainOf(recorded);
  golden->starts = StartsOf(recorded[family]["lengths"].get<Lengths>());
  ASSERT_EQ(golden->starts.size(), golden->tokens.size());
  std::vector<Shape> shapes = {{.name = "one rank"}};
  for (const Shape& shape : ShapesOfRanks(family)) shapes.push_back(shape);
  const auto expected = recorded[family]["losses"].get<std::vector<double>>();
  for (const Shape& shape : shapes) ExpectFollows(*golden, shape, expected, family);
}

// Ranks of a ring see documents that begin on another rank, end there, or lie there as a whole.
JobData JobOfDocuments(const std::string& family) {
  JobData data = SmallJob(family);
  data.starts = StartsOf({{16}, {3, 1, 9, 3}, {1, 1, 14}, {8, 8}});
  return data;
}

TEST(EveryKindTest, DocumentsAreAsOnOneRank) {
  std::vector<LayoutKind> kinds;
  for (const LayoutKind& kind : kKinds) {
    if (kind.context_type != "ulysses") kinds.push_back(kind);
  }
  kinds.push_back({.name = "ring", .context = 2});
  kinds.push_back({.name = "ring of four, recomputed", .context = 4, .recompute = "block"});
  for (const std::string family : {"gpt2", "llama"})
    ExpectEveryKindDoesAsOneRank(JobOfDocuments(family), family, kinds);
}

// One document a row is what a row without documents is, to the bit.
TEST(OneDocumentTest, ItIsARow) {
  JobData data = SmallJob("llama");
  const std::vector<double> losses = TrainLayout(data, LayoutOfKind({}), 3, kInTurns).losses;
  data.starts = StartsOf({{16}, {16}, {16}, {16}});
  EXPECT_EQ(TrainLayout(data, LayoutOfKind({}), 3, kInTurns).losses, losses);
  data.starts = StartsOf({{16}, {16}, {16}, {15, 1}});
  EXPECT_NE(TrainLayout(data, LayoutOfKind({}), 3, kInTurns).losses, losses);
}

// What stands before a document in its row changes nothing of it.
TEST(OneDocumentTest, ItsNeighboursDoNotMatter) {
  JobData data = JobOfDocuments("llama");
  const std::vector<float> gradient = [&] {
    JobData one = data;
    for (size_t i = 0; i < one.targets.size(); ++i) {
      if (i < 16 || i >= 32 || one.starts[i] != 4) one.targets[i] = -1;
    }
    const Tensors gradients = TrainLayout(one, LayoutOfKind({}), 1, kInTurns).gradients;
    // Other tokens in front of the one document whose loss counts, and behind it.
    for (const int i : {16, 17, 18, 19, 29, 30, 31}) one.tokens[i] = (one.tokens[i] + 5) % 11;
    const Tensors others = TrainLayout(one, LayoutOfKind({}), 1, kInTurns).gradients;
    const std::string name = "model.layers.0.self_attn.k_proj.weight";
    EXPECT_EQ(gradients.at(name), others.at(name));
    return gradients.at(name);
  }();
  EXPECT_THAT(gradient, testing::Contains(testing::Ne(0.0f)));
}

}  // namespace
}  // namespace terrace
