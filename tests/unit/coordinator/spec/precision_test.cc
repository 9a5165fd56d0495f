// train.precision with layers and modules of its own.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/spec/job_spec.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

std::string Yaml(const std::string& precision, const std::string& more = "") {
  return absl::StrCat(
      "name: books\nmodel: {config: gpt2}\ndata: {train: [books.txt]}\n"
      "train: {steps: 10, global_batch: 8, precision: ",
      precision, more, "}\n");
}

v1::TrainSpec Parse(const std::string& precision) {
  const auto spec = ParseJobSpec(Yaml(precision), "/jobs");
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? spec->train() : v1::TrainSpec();
}

std::string ErrorOf(const std::string& precision, const std::string& more = "") {
  const auto spec = ParseJobSpec(Yaml(precision, more), "/jobs");
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument) << precision;
  return std::string(spec.status().message());
}

TEST(PrecisionTest, OneWordIsForAllLayers) {
  EXPECT_EQ(Parse("fp8").precision(), "fp8");
  EXPECT_THAT(Parse("fp8").precision_rules(), IsEmpty());
}

TEST(PrecisionTest, LayersAndModulesHaveTheirOwn) {
  const v1::TrainSpec train = Parse(
      "{layers: {first 1: bf16, 30-31.mlp: bf16, lm_head: fp32}, "
      "default: fp8}");
  EXPECT_EQ(train.precision(), "fp8");
  ASSERT_EQ(train.precision_rules_size(), 3);
  EXPECT_EQ(train.precision_rules(0).where(), "first 1");
  EXPECT_EQ(train.precision_rules(1).where(), "30-31.mlp");
  EXPECT_EQ(train.precision_rules(1).precision(), "bf16");
  EXPECT_EQ(train.precision_rules(2).precision(), "fp32");
  EXPECT_EQ(Parse("{layers: {lm_head: fp32}}").precision(), "bf16") << "the default of the key";
  EXPECT_EQ(Parse("{default: fp32}").precision(), "fp32");
  EXPECT_EQ(Parse("{default: bf16, layers: {norms: fp32}}").precision_rules_size(), 1);
}

TEST(PrecisionTest, OfAnUnknownPlaceTheNearestIsNamed) {
  for (const auto& [place, meant] :
       {std::pair{"lm_haed", "lm_head"}, std::pair{"head", "lm_head"}, std::pair{"norm", "norms"},
        std::pair{"embeddings", "embedding"}, std::pair{"atention", "attention"},
        std::pair{"ffn", "mlp"}, std::pair{"lasst 1", "last 1"}, std::pair{"layers 0-3", "0-3"},
        std::pair{"layer 2.self_attn", "2.attention"}, std::pair{"first 2.mlps", "first 2.mlp"},
        std::pair{"frist 2.mlp", "first 2.mlp"}, std::pair{"zebra", "first 1"}}) {
    EXPECT_THAT(ErrorOf(absl::StrCat("{layers: {", place, ": fp32}}")),
                HasSubstr(absl::StrCat("norms; try ", meant)))
        << place;
  }
}

TEST(PrecisionTest, WhereWeightsAreRoundedStochasticallyOnlyNormsAreExact) {
  const std::string rounds = ", optimizer: {stochastic_rounding: true}";
  EXPECT_TRUE(ParseJobSpec(Yaml("{layers: {norms: fp32, mlp: fp8}}", rounds), "/jobs").ok());
  for (const char* place : {"lm_head", "embedding", "last 1.mlp"}) {
    EXPECT_THAT(ErrorOf(absl::StrCat("{layers: {", place, ": fp32}}"), rounds),
                HasSubstr(absl::StrCat("train.precision.layers.", place,
                                       ": got fp32, must be bf16 or fp8 with")));
  }
}

TEST(PrecisionTest, WhatIsWrongIsNamedWithItsPlace) {
  EXPECT_THAT(ErrorOf("bf61"),
              HasSubstr("train.precision: got \"bf61\", must be one of fp32, tf32, bf16, fp16, "
                        "fp8, or a mapping with default and layers; try bf16"));
  EXPECT_THAT(ErrorOf("[bf16]"), HasSubstr("train.precision: got a list"));
  EXPECT_THAT(ErrorOf("{defualt: bf16}"),
              HasSubstr("line 4, column 49: train.precision.defualt: got an unknown key, must be "
                        "default or layers"));
  EXPECT_THAT(ErrorOf("{default: fp4}"),
              HasSubstr("train.precision.default: got \"fp4\", must be one of fp32"));
  EXPECT_THAT(ErrorOf("{layers: bf16}"),
              HasSubstr("train.precision.layers: got \"bf16\", must be a mapping from places"));
  EXPECT_THAT(ErrorOf("{layers: {head: fp32}}"),
              HasSubstr("train.precision.layers.head: got an unknown place, must be layers"));
  EXPECT_THAT(ErrorOf("{layers: {0-1: bf61}}"),
              HasSubstr("train.precision.layers.0-1: got \"bf61\", must be one of"));
  EXPECT_THAT(ErrorOf("{layers: {0: bf16, 0: fp8}}"), HasSubstr("got the place twice"));
}

TEST(PrecisionTest, ActivationsHaveTheTypeOfTheDefault) {
  EXPECT_THAT(ErrorOf("{default: bf16, layers: {0: fp16}}"),
              HasSubstr("train.precision.layers.0: got fp16, must be one of fp8, bf16, fp32, tf32 "
                        "with train.precision.default bf16"));
  EXPECT_THAT(ErrorOf("{default: fp16, layers: {0: fp8}}"), HasSubstr("one of fp16, fp32, tf32"));
  EXPECT_THAT(ErrorOf("{default: fp32, layers: {0: fp8}}"), HasSubstr("one of fp32, tf32, bf16"));
  EXPECT_THAT(ErrorOf("{default: fp8, layers: {lm_head: fp8}}"),
              HasSubstr("the loss needs the head's products in 16 bits at least"));
  EXPECT_THAT(ErrorOf("{default: bf16, layers: {embedding: fp8}}"),
              HasSubstr("one of fp32, bf16 with train.precision.default bf16"));
  EXPECT_THAT(ErrorOf("{default: bf16, layers: {norms: bf16}}"),
              HasSubstr("must be fp32 with train.precision.default bf16: norms compute in fp32"));
}

TEST(PrecisionTest, WithoutWeightsInFp32NothingComputesInIt) {
  EXPECT_THAT(ErrorOf("{default: bf16, layers: {lm_head: fp32}}",
                      ", optimizer: {stochastic_rounding: true}"),
              HasSubstr("train.precision.layers.lm_head: got fp32, must be bf16 or fp8 with "
                        "train.optimizer.stochastic_rounding"));
}

}  // namespace
}  // namespace terrace
