// Training on pairs of answers.
//
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/spec/job_spec.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

absl::StatusOr<v1::JobSpec> Read(const std::string& train, const std::string& data = "",
                                 const std::string& lora = "lora: {rank: 4}") {
  return ParseJobSpec(absl::StrCat("name: pairs\nmodel: {config: gpt2", lora.empty() ? "" : ", ",
                                   lora, "}\ndata: {train: [pairs.jsonl]", data,
                                   "}\ntrain: {steps: 5, global_batch: 8, ", train, "}\n"),
                      "/jobs");
}

v1::JobSpec Parse(const std::string& train) {
  const auto spec = Read(train);
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? *spec : v1::JobSpec();
}

std::string ErrorOf(const std::string& train, const std::string& data = "",
                    const std::string& lora = "lora: {rank: 4}") {
  const auto spec = Read(train, data, lora);
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument) << train << data;
  return std::string(spec.status().message());
}

TEST(PreferenceSpecTest, AnyKeyOfItMakesPairs) {
  const v1::JobSpec spec = Parse("preference: {beta: 0.25}");
  EXPECT_DOUBLE_EQ(spec.train().preference().beta(), 0.25);
  EXPECT_EQ(spec.train().preference().loss(), "sigmoid");
  EXPECT_EQ(spec.data().samples(), "documents");
  EXPECT_DOUBLE_EQ(Parse("preference: sigmoid").train().preference().beta(), 0.1);
  EXPECT_DOUBLE_EQ(
      Parse("preference: {label_smoothing: 0.2}").train().preference().label_smoothing(), 0.2);
  EXPECT_FALSE(Parse("seed: 1").train().has_preference());
  EXPECT_EQ(Parse("seed: 1").data().samples(), "stream");
}

TEST(PreferenceSpecTest, WhatDoesNotGoWithItIsRefused) {
  const std::string pairs = "preference: {beta: 0.1}";
  EXPECT_THAT(ErrorOf(pairs, "", ""),
              AllOf(HasSubstr("train.preference: got a job without adapters"),
                    HasSubstr("try model.lora: {rank: 16}")));
  EXPECT_THAT(ErrorOf(pairs, "", "init: base, lora: {init: adapter}"),
              AllOf(HasSubstr("model.lora.init"), HasSubstr("terrace ckpt merge")));
  EXPECT_THAT(ErrorOf(pairs + ", z_loss: 1e-4"), HasSubstr("train.z_loss"));
  EXPECT_THAT(ErrorOf(pairs + ", label_smoothing: 0.1"),
              HasSubstr("try train.preference.label_smoothing"));
  EXPECT_THAT(ErrorOf(pairs, ", samples: packed"), HasSubstr("data.samples: got packed"));
  EXPECT_THAT(ErrorOf(pairs, ", loss_on: all"), HasSubstr("data.loss_on: got all"));
  EXPECT_THAT(ErrorOf(pairs, ", sequence_length: 8, samples: documents, buckets: [4, 8]"),
              HasSubstr("data.buckets"));
  EXPECT_THAT(ErrorOf(pairs, ", sequence_length: 1048576"),
              HasSubstr("must be at most 524288 with train.preference"));
  EXPECT_THAT(ErrorOf("preference: {loss: hinge}"), HasSubstr("train.preference.loss"));
  EXPECT_THAT(ErrorOf("preference: {label_smoothing: 0.5}"),
              HasSubstr("train.preference.label_smoothing"));
}

}  // namespace
}  // namespace terrace
