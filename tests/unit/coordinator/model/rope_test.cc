// Expected values: transformers' ROPE_INIT_FUNCTIONS for the same configs, head_dim 16.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/model/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace terrace {
namespace {

struct Case {
  const char* name;
  const char* config;
  int64_t max_positions;
  int64_t sequence_length;
  std::vector<double> frequencies;
  double attention_factor;
};

class RopeTest : public testing::TestWithParam<Case> {};

TEST_P(RopeTest, MatchesTransformers) {
  const Case& c = GetParam();
  std::vector<std::string> problems;
  const RopeConfig rope = ReadRope(nlohmann::json::parse(c.config),
                                   {16, c.max_positions, c.sequence_length}, &problems);
  EXPECT_THAT(problems, testing::IsEmpty());
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

TEST(RopeErrorTest, UnknownTypeNamesTheChoices) {
  std::vector<std::string> problems;
  ReadRope(nlohmann::json::parse(R"({"rope_scaling":{"rope_type":"magic"}})"), {16, 128, 128},
           &problems);
  EXPECT_THAT(problems, testing::ElementsAre(testing::HasSubstr("llama3, longrope")));
}

TEST(RopeErrorTest, WrongNumberOfLongRopeFactorsIsAProblem) {
  std::vector<std::string> problems;
  ReadRope(nlohmann::json::parse(R"({"rope_scaling":{"rope_type":"longrope","short_factor":[1,2],
             "original_max_position_embeddings":64}})"),
           {16, 128, 32}, &problems);
  EXPECT_THAT(problems, testing::ElementsAre(testing::HasSubstr("8 numbers")));
}

}  // namespace
}  // namespace terrace
