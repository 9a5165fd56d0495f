// Expected values: transformers' ROPE_INIT_FUNCTIONS for the same configs, head_dim 16.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/model/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Case {
  const char* name;
  const char* config;
  int64_t max_positions;
  int64_t sequence_length;
  std::vector<double> frequencies;
  double attention_factor;
};

struct Read {
  RopeConfig rope, local;
  std::vector<std::string> problems, remarks;
};

Read ReadText(const char* text, const RopeInput& input, const RotaryRule& rule = {}) {
  const nlohmann::json json = nlohmann::json::parse(text);
  Read read;
  JsonReader reader(json, "", &read.problems);
  Ropes ropes = ReadRopes(reader, input, rule, &read.problems, &read.remarks);
  read.rope = std::move(ropes.rope);
  read.local = std::move(ropes.local);
  return read;
}

class RopeTest : public testing::TestWithParam<Case> {};

TEST_P(RopeTest, MatchesTransformers) {
  const Case& c = GetParam();
  const Read read = ReadText(c.config, {16, c.max_positions, c.sequence_length});
  const RopeConfig& rope = read.rope;
  EXPECT_THAT(read.problems, testing::IsEmpty());
  ASSERT_EQ(rope.inverse_frequency.size(), c.frequencies.size());
  for (size_t i = 0; i < c.frequencies.size(); ++i) {
    EXPECT_NEAR(rope.inverse_frequency[i] / c.frequencies[i], 1.0, 1e-6) << "frequency " << i;
  }
  EXPECT_NEAR(rope.attention_factor, c.attention_factor, 1e-9);
}

constexpr char kLongRope[] =
    R"({"original_max_position_embeddings":4096,"rope_scaling":{"rope_type":"longrope",
  "long_factor":[1,1.5,2,3,4,8,16,32],"short_factor":[1,1,1,1,1,1.1,1.2,1.3],"factor":32,
  "original_max_position_embeddings":4096}})";

INSTANTIATE_TEST_SUITE_P(
    Variants, RopeTest,
    testing::Values(
        Case{"default",
             R"({"rope_theta":10000})",
             2048,
             128,
             {1.0, 0.316227766, 0.1, 0.0316227766, 0.01, 0.00316227766, 0.001, 0.000316227766},
             1.0},
        Case{"newer_form",
             R"({"rope_parameters":{"rope_type":"default","rope_theta":10000}})",
             2048,
             128,
             {1.0, 0.316227766, 0.1, 0.0316227766, 0.01, 0.00316227766, 0.001, 0.000316227766},
             1.0},
        Case{"linear",
             R"({"rope_scaling":{"type":"linear","factor":4.0}})",
             2048,
             128,
             {0.25, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466,
              0.000250000012, 7.90569466e-05},
             1.0},
        Case{"dynamic",
             R"({"rope_scaling":{"type":"dynamic","factor":2.0}})",
             128,
             256,
             {1.0, 0.270296127, 0.0730599985, 0.0197478328, 0.00533776265, 0.00144277664,
              0.000389976922, 0.000105409257},
             1.0},
        Case{"llama3",
             R"({"rope_theta":500000.0,"rope_scaling":{"rope_type":"llama3","factor":8.0,
             "low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192}})",
             131072,
             1024,
             {1.0, 0.193922758, 0.0376060307, 0.00729266508, 0.000524846022, 3.42810235e-05,
              6.64786967e-06, 1.28917316e-06},
             1.0},
        Case{"yarn",
             R"({"rope_theta":1000000.0,"rope_scaling":{"rope_type":"yarn","factor":4.0,
             "original_max_position_embeddings":16384}})",
             65536,
             1024,
             {1.0, 0.177827939, 0.0316227786, 0.00421755994, 0.000500000024, 4.44569851e-05,
              7.90569356e-06, 1.40585337e-06},
             1.138629436111989},
        Case{"longrope_long",
             kLongRope,
             131072,
             8192,
             {1.0, 0.210818499, 0.0500000007, 0.010540925, 0.00249999994, 0.000395284733,
              6.2500003e-05, 9.88211832e-06},
             1.1902380714238083},
        Case{"longrope_short",
             kLongRope,
             131072,
             1024,
             {1.0, 0.316227764, 0.100000001, 0.0316227786, 0.00999999978, 0.00287479791,
              0.000833333354, 0.000243252129},
             1.1902380714238083}),
    [](const testing::TestParamInfo<Case>& param) { return param.param.name; });

constexpr RopeInput kSmall = {.head_dim = 16, .max_positions = 128, .sequence_length = 128};

double SecondFrequency(const char* text) {
  return ReadText(text, kSmall).rope.inverse_frequency[1];
}

// 1 / theta^(2/16).
constexpr double kOf1e4 = 0.316227766, kOf5e5 = 0.193922758;

// transformers 5, convert_rope_params_to_dict; 4 does not know rope_parameters.
TEST(RopePlacesTest, RopeScalingCountsBeforeRopeParametersAndTheRestIsSaid) {
  const Read read = ReadText(R"({"rope_theta":1e4,"rope_scaling":{"rope_type":"linear","factor":2},
      "rope_parameters":{"rope_type":"default","rope_theta":1e4}})",
                             kSmall);
  EXPECT_NEAR(read.rope.inverse_frequency[1], kOf1e4 / 2, 1e-7);
  EXPECT_THAT(read.remarks, ElementsAre(HasSubstr("rope_parameters: got {")));
}

TEST(RopePlacesTest, AnEmptyOrNullRopeScalingLeavesTheWordToRopeParameters) {
  EXPECT_NEAR(SecondFrequency(R"({"rope_scaling":null,"rope_parameters":{"rope_theta":5e5}})"),
              kOf5e5, 1e-7);
  EXPECT_NEAR(SecondFrequency(R"({"rope_scaling":{},"rope_parameters":{"rope_theta":5e5}})"),
              kOf5e5, 1e-7);
}

TEST(RopePlacesTest, AThetaInTheObjectCountsBeforeTheOneBesideIt) {
  const Read read = ReadText(R"({"rope_theta":1e4,"rope_parameters":{"rope_theta":5e5}})", kSmall);
  EXPECT_NEAR(read.rope.inverse_frequency[1], kOf5e5, 1e-7);
  EXPECT_THAT(read.remarks,
              ElementsAre(HasSubstr("rope_theta 500000 counts, not rope_theta 10000")));
  EXPECT_NEAR(SecondFrequency(R"({"rope_theta":5e5,"rope_parameters":{"rope_type":"default"}})"),
              kOf5e5, 1e-7);
}

// transformers 4 takes the type of an object with both from "type", 5 from "rope_type".
TEST(RopePlacesTest, TwoTypesThatDifferAreRefused) {
  EXPECT_THAT(
      ReadText(R"({"rope_scaling":{"type":"linear","rope_type":"dynamic","factor":2}})", kSmall)
          .problems,
      ElementsAre(HasSubstr("leave one of them out")));
  EXPECT_NEAR(
      SecondFrequency(R"({"rope_scaling":{"type":"linear","rope_type":"linear","factor":2}})"),
      kOf1e4 / 2, 1e-7);
}

TEST(RopePlacesTest, WhatIsMissingOrNoObjectIsOneProblem) {
  EXPECT_THAT(ReadText(R"({"rope_scaling":"linear"})", kSmall).problems,
              ElementsAre(HasSubstr("rope_scaling: got \"linear\", must be an object")));
  EXPECT_THAT(ReadText(R"({"rope_scaling":{"rope_type":"llama3","factor":8}})", kSmall).problems,
              ElementsAre(HasSubstr("low_freq_factor: got nothing"),
                          HasSubstr("high_freq_factor: got nothing")));
  EXPECT_THAT(ReadText(R"({"rope_scaling":{"rope_type":"longrope","factor":8}})", kSmall).problems,
              ElementsAre(HasSubstr("short_factor: got nothing")));
}

TEST(RopePlacesTest, APartialRotaryFactorIsRefusedWhereverItStands) {
  for (const char* text :
       {R"({"partial_rotary_factor":0.5})",
        R"({"rope_scaling":{"rope_type":"default","partial_rotary_factor":0.5}})",
        R"({"rope_parameters":{"partial_rotary_factor":0.5}})"}) {
    EXPECT_THAT(ReadText(text, kSmall).problems,
                ElementsAre(HasSubstr("partial_rotary_factor: got 0.5, must be 1")))
        << text;
  }
  EXPECT_THAT(ReadText(R"({"rope_parameters":{"partial_rotary_factor":1.0}})", kSmall).problems,
              IsEmpty());
}

// As GPTNeoXConfig: what stands in the section counts before what stands beside it, and that before
// the family's part.
TEST(RopePlacesTest, AFamilyThatRotatesAPartReadsIt) {
  const RotaryRule rule = {
      .part = 0.25, .part_key = "rotary_pct", .theta_key = "rotary_emb_base", .whole_only = false};
  const auto rotated = [&](const char* text) {
    const Read read = ReadText(text, kSmall, rule);
    EXPECT_THAT(read.problems, IsEmpty()) << text;
    return read.rope.rotated();
  };
  EXPECT_EQ(rotated("{}"), 4);
  EXPECT_EQ(rotated(R"({"rotary_pct":0.5})"), 8);
  EXPECT_EQ(rotated(R"({"rotary_pct":1})"), 16);
  EXPECT_EQ(rotated(R"({"rotary_pct":0.5,"rope_parameters":{"partial_rotary_factor":0.25}})"), 4);
  const Read read = ReadText(R"({"rotary_pct":0.5,"rotary_emb_base":100})", kSmall, rule);
  EXPECT_NEAR(read.rope.inverse_frequency[1], std::pow(100, -2.0 / 8), 1e-12);
}

TEST(RopePlacesTest, APartThatIsNoPairsOfElementsIsRefused) {
  const RotaryRule rule = {.part = 0.25, .whole_only = false};
  for (const char* text : {R"({"partial_rotary_factor":0.2})", R"({"partial_rotary_factor":0.1})",
                           R"({"partial_rotary_factor":0})"}) {
    EXPECT_THAT(ReadText(text, kSmall, rule).problems,
                ElementsAre(HasSubstr("a part of head_dim 16 that is an even number")))
        << text;
  }
}

TEST(RopePlacesTest, TheKeyThatWasWrittenIsNamed) {
  const RotaryRule rule = {.part = 0.25, .part_key = "rotary_pct", .whole_only = false};
  EXPECT_THAT(ReadText(R"({"rotary_pct":0.1})", kSmall, rule).problems,
              ElementsAre(HasSubstr("rotary_pct: got 0.1")));
  EXPECT_THAT(
      ReadText(R"({"rope_parameters":{"partial_rotary_factor":0.1}})", kSmall, rule).problems,
      ElementsAre(HasSubstr("rope_parameters.partial_rotary_factor: got 0.1")));
}

// As Phi3Config: 4096 positions unless the key beside the object says otherwise, and of the types
// longrope, which older files call su or yarn.
TEST(RopePlacesTest, AFamilyOfLongropeAloneReadsItsPositionsBesideTheObject) {
  const RotaryRule rule = {.whole_only = false, .longrope_only = true, .trained = 4096};
  const auto second = [&](const std::string& type, const std::string& beside) {
    const std::string text = R"({"rope_scaling":{"type":")" + type +
                             R"(","short_factor":[1,2,3,4,5,6,7,8],)" +
                             R"("long_factor":[1,4,3,4,5,6,7,8]})" + beside + "}";
    const Read read = ReadText(text.c_str(), kSmall, rule);
    EXPECT_THAT(read.problems, IsEmpty()) << text;
    return read.rope.inverse_frequency[1];
  };
  for (const char* type : {"longrope", "su", "yarn"}) {
    EXPECT_NEAR(second(type, ""), kOf1e4 / 2, 1e-7) << type;
    EXPECT_NEAR(second(type, R"(,"original_max_position_embeddings":8)"), kOf1e4 / 4, 1e-7) << type;
  }
  const Read inside = ReadText(
      R"({"rope_scaling":{"type":"longrope","original_max_position_embeddings":8,
          "short_factor":[1,2,3,4,5,6,7,8],"long_factor":[1,4,3,4,5,6,7,8]}})",
      kSmall, rule);
  EXPECT_NEAR(inside.rope.inverse_frequency[1], kOf1e4 / 2, 1e-7);
  EXPECT_THAT(inside.remarks, ElementsAre(HasSubstr("4096 counts, not rope_scaling.original_max")));
  EXPECT_THAT(ReadText(R"({"rope_scaling":{"type":"linear","factor":2}})", kSmall, rule).problems,
              ElementsAre(HasSubstr("got \"linear\", must be default or longrope")));
}

TEST(RopePlacesTest, OneRopeForEachKindOfLayerIsRefused) {
  EXPECT_THAT(
      ReadText(R"({"rope_parameters":{"full_attention":{"rope_theta":1e6}}})", kSmall).problems,
      ElementsAre(HasSubstr("all layers of these families have one rope")));
}

// As transformers 5 does for llama3, yarn and longrope: beside counts before inside, and the
// positions are the last resort.
TEST(RopePlacesTest, TrainedPositionsStandBesideOrInside) {
  const std::string yarn = R"("rope_scaling":{"rope_type":"yarn","factor":4,"rope_theta":1e6)";
  const auto frequency = [&](const std::string& beside, const std::string& inside) {
    const std::string text = absl::StrCat("{", beside, yarn, inside, "}}");
    return ReadText(text.c_str(), {16, 65536, 1024}).rope.inverse_frequency[3];
  };
  const double inside = frequency("", R"(,"original_max_position_embeddings":16384)");
  EXPECT_NEAR(inside, 0.00421755994, 1e-9);
  EXPECT_EQ(frequency(R"("original_max_position_embeddings":16384,)", ""), inside);
  EXPECT_EQ(frequency(R"("original_max_position_embeddings":16384,)",
                      R"(,"original_max_position_embeddings":512)"),
            inside);
  EXPECT_NE(frequency("", ""), inside);
}

TEST(RopeKeysTest, KeysOfAnotherTypeAndUnknownOnesAreSaid) {
  EXPECT_THAT(ReadText(R"({"rope_scaling":{"rope_type":"linear","factor":2,"beta_fast":32,
      "finetuned":true,"factr":3}})",
                       kSmall)
                  .remarks,
              ElementsAre(HasSubstr("beta_fast: got 32, which rope type linear does not read"),
                          HasSubstr("factr: got 3, which nothing reads; is factor meant?")));
}

TEST(RopeErrorTest, UnknownTypeNamesTheChoices) {
  EXPECT_THAT(ReadText(R"({"rope_scaling":{"rope_type":"magic"}})", kSmall).problems,
              ElementsAre(HasSubstr("llama3, longrope")));
}

TEST(RopeErrorTest, WrongNumberOfLongRopeFactorsIsAProblem) {
  EXPECT_THAT(ReadText(R"({"rope_scaling":{"rope_type":"longrope","short_factor":[1,2],
             "original_max_position_embeddings":64}})",
                       {16, 128, 32})
                  .problems,
              ElementsAre(HasSubstr("8 numbers")));
}

}  // namespace
}  // namespace terrace
