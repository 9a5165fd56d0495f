// The values that a job of an array has in place of those in its spec.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/spec/overrides.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "coordinator/spec/job_spec.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr char kSpec[] =
    "name: books\n"
    "model: {config: gpt2}\n"
    "data: {train: [books.txt], sequence_length: 100}\n"
    "train:\n"
    "  steps: 10\n"
    "  global_batch: 8\n"
    "  optimizer: {lr: 1e-4}\n"
    "layout: auto\n";

v1::ArrayMember MemberOf(const std::vector<std::pair<std::string, std::string>>& values) {
  v1::ArrayMember member;
  member.set_index(2);
  member.set_size(4);
  for (const auto& [key, value] : values) {
    v1::ArrayMember::Value& added = *member.add_values();
    added.set_key(key);
    added.set_value(value);
  }
  return member;
}

absl::StatusOr<v1::JobSpec> Parse(const std::vector<std::pair<std::string, std::string>>& values) {
  return ParseJobSpec(kSpec, "/jobs", MemberOf(values));
}
std::string ErrorOf(const std::vector<std::pair<std::string, std::string>>& values) {
  const auto spec = Parse(values);
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(spec.status().message());
}

TEST(OverridesTest, ValuesReplaceThoseOfTheTextAndMakeSectionsThatItLacks) {
  const auto spec = Parse({{"train.optimizer.lr", "3e-4"},
                           {"train.seed", "7"},
                           {"layout.zero", "1"},
                           {"train.schedule.name", "constant"},
                           {"train.optimizer.betas", "[0.8, 0.9]"}});
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_DOUBLE_EQ(spec->train().optimizer().lr(), 3e-4);
  EXPECT_DOUBLE_EQ(spec->train().optimizer().beta1(), 0.8);
  EXPECT_EQ(spec->train().seed(), 7);
  EXPECT_EQ(spec->layout().zero(), 1);
  EXPECT_EQ(spec->train().schedule().name(), "constant");
  EXPECT_EQ(spec->train().steps(), 10) << "the rest is as it was written";
  EXPECT_EQ(spec->yaml(), kSpec);
}

TEST(OverridesTest, EachJobHasAFolderOfItsOwnForCheckpoints) {
  EXPECT_EQ(Parse({{"train.seed", "7"}})->checkpoint().directory(),
            "/jobs/checkpoints/books/train.seed=7");
  EXPECT_EQ(*FolderOf(MemberOf({{"train.optimizer.lr", "1e-4"}, {"data.train", "../a b,c.txt"}})),
            "train.optimizer.lr=1e-4,data.train=..%2fa%20b%2cc.txt");
  EXPECT_THAT(ErrorOf({{"train.seed", "7"}, {"data.cache", std::string(300, 'c')}}),
              HasSubstr("too long for the name of a folder"));
  EXPECT_EQ(Parse({{"checkpoint.directory", "here"}})->checkpoint().directory(), "/jobs/here")
      << "it is one of the values";
  EXPECT_EQ(ParseJobSpec(kSpec, "/jobs")->checkpoint().directory(), "/jobs/checkpoints/books");
}

TEST(OverridesTest, WhatIsWrongIsToldByKeyAndValue) {
  EXPECT_THAT(ErrorOf({{"train.optimizer.lr", "fast"}}),
              AllOf(HasSubstr("train.optimizer.lr: got"), HasSubstr("fast")));
  EXPECT_THAT(ErrorOf({{"train.optimizer.lrr", "1"}}),
              AllOf(HasSubstr("train.optimizer.lrr: got an unknown key"),
                    HasSubstr("try train.optimizer.lr"), Not(HasSubstr("line 0"))));
  EXPECT_THAT(ErrorOf({{"train..lr", "1"}}), HasSubstr("must be the path of a key"));
  EXPECT_THAT(ErrorOf({{"", "1"}}), HasSubstr("must be the path of a key"));
  EXPECT_THAT(ErrorOf({{"train.seed", "[1"}}), HasSubstr("is not YAML"));
  EXPECT_THAT(ErrorOf({{"train.steps.more", "1"}}),
              HasSubstr("but the spec gives train.steps a value"));
}

}  // namespace
}  // namespace terrace
