// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "coordinator/spec/job_spec.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<v1::JobSpec> Parse(const std::string& train) {
  return ParseJobSpec(absl::StrCat("name: books\nmodel: {config: gpt2}\ntrain: {steps: 10, "
                                   "global_batch: 8}\ndata:\n  train: ",
                                   train, "\n"),
                      "/jobs");
}

std::string ErrorOf(const std::string& train) {
  const auto spec = Parse(train);
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kInvalidArgument) << train;
  return std::string(spec.status().message());
}

TEST(MixtureSpecTest, SourcesHavePathsAndAWeight) {
  const auto spec = Parse("[{path: a.bin, weight: 0.7}, {weight: 3e-1, path: [b.bin, /c.bin]}]");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(spec->data().train(), ElementsAre("/jobs/a.bin", "/jobs/b.bin", "/c.bin"));
  ASSERT_EQ(spec->data().mixture_size(), 2);
  EXPECT_EQ(spec->data().mixture(0).files(), 1u);
  EXPECT_DOUBLE_EQ(spec->data().mixture(0).weight(), 0.7);
  EXPECT_EQ(spec->data().mixture(1).files(), 2u);
  EXPECT_DOUBLE_EQ(spec->data().mixture(1).weight(), 0.3);
}

TEST(MixtureSpecTest, RowsAreFewerThanCanBeDrawn) {
  const auto problem = [](const char* train) {
    const auto spec =
        ParseJobSpec(absl::StrCat("name: books\nmodel: {config: gpt2}\ndata:\n  train: ", train,
                                  "\ntrain: {steps: 1000000000, global_batch: 100000}\n"),
                     "/jobs");
    return std::string(spec.status().message());
  };
  EXPECT_THAT(problem("[{path: a, weight: 1}, {path: b, weight: 2}]"),
              AllOf(HasSubstr("train.steps: got 1000000000"), HasSubstr("2^43 rows")));
  EXPECT_EQ(problem("[a, b]"), "");
}

TEST(MixtureSpecTest, PlainPathsHaveNone) {
  for (const char* train : {"a.txt", "[a.txt, b.txt]"})
    EXPECT_EQ(Parse(train)->data().mixture_size(), 0) << train;
  EXPECT_THAT(ErrorOf("[]"), HasSubstr("list of mappings of path and weight"));
}

TEST(MixtureSpecTest, WhatIsWrongIsSaidWithItsPlace) {
  EXPECT_THAT(ErrorOf("[{path: a, weight: 1}, b]"),
              AllOf(HasSubstr("line 5, column 33: data.train[1]: got \"b\""),
                    HasSubstr("all entries have a weight, or none has")));
  EXPECT_THAT(ErrorOf("[{path: a}, {path: b, weight: 1}]"),
              HasSubstr("data.train[0]: got no weight"));
  EXPECT_THAT(ErrorOf("[{weight: 1}]"), HasSubstr("data.train[0]: got no path"));
  EXPECT_THAT(ErrorOf("[{path: a, wieght: 1}]"), HasSubstr("try weight"));
  EXPECT_THAT(ErrorOf("[{path: a, path: b, weight: 1}]"), HasSubstr("the key twice"));
  EXPECT_THAT(ErrorOf("[{path: [], weight: 1}]"), HasSubstr("an empty list"));
  EXPECT_THAT(ErrorOf("[{path: {}, weight: 1}]"), HasSubstr("a path or a list of paths"));
  EXPECT_THAT(ErrorOf("{path: a, weight: 1}"), HasSubstr("data.train: got a mapping"));
  for (const char* weight : {"0", "-1", ".nan", ".inf", "1e13", "much", "[1]"}) {
    EXPECT_THAT(ErrorOf(absl::StrCat("[{path: a, weight: ", weight, "}]")),
                HasSubstr("data.train[0].weight: got"))
        << weight;
  }
  EXPECT_THAT(ErrorOf("[{path: a, weight: 1}, {path: b, weight: 1e-6}]"),
              AllOf(HasSubstr("data.train[1].weight"), HasSubstr("at least 1e-05 of all weights")));
}

}  // namespace
}  // namespace terrace
