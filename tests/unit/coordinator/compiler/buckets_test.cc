// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/buckets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "coordinator/compiler/builder.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace::compiler {
namespace {

// Gradients of the given sizes, written one after the other.
class BucketsTest : public testing::Test {
 protected:
  void Write(const std::vector<int64_t>& elements) {
    graph_.sequences.push_back({.name = "train"});
    Builder builder(&graph_, 0);
    for (int64_t n : elements) {
      const int weight = graph_.Add({.name = "w", .shape = {n}, .lifetime = v1::PERSISTENT});
      const int gradient = gradients_.Of(weight, &builder);
      builder.Compute(kernels::Op::kFill, kernels::FillAttrs{}, {graph_.Whole(gradient)}, "write");
      order_.push_back(gradient);
    }
  }
  int BucketOf(size_t index) const { return graph_.values[order_[index]].inside; }

  Graph graph_;
  ParameterGradients gradients_;
  std::vector<int> order_;  // gradient values in the order of writing
};

TEST_F(BucketsTest, GradientsFillBucketsInTheOrderOfFinish) {
  Write({10, 20, 30, 40});
  const std::vector<Bucket> buckets = MakeBuckets(gradients_, 60 * 4, 0, &graph_);
  ASSERT_EQ(buckets.size(), 2u);
  EXPECT_EQ(graph_.values[buckets[0].value].elements(), 60);
  EXPECT_EQ(graph_.values[buckets[1].value].elements(), 40);
  EXPECT_EQ(buckets[0].last_writer, 2u);
  EXPECT_EQ(buckets[1].last_writer, 3u);
}

TEST_F(BucketsTest, GradientsLieWithoutGaps) {
  Write({7, 5, 3});
  const std::vector<Bucket> buckets = MakeBuckets(gradients_, 1 << 20, 0, &graph_);
  ASSERT_EQ(buckets.size(), 1u);
  EXPECT_EQ(graph_.values[order_[0]].inside_offset, 0);
  EXPECT_EQ(graph_.values[order_[1]].inside_offset, 7);
  EXPECT_EQ(graph_.values[order_[2]].inside_offset, 12);
  EXPECT_EQ(graph_.values[buckets[0].value].elements(), 15);
}

TEST_F(BucketsTest, ALargeGradientHasABucketOfItsOwn) {
  Write({10, 500, 10});
  const std::vector<Bucket> buckets = MakeBuckets(gradients_, 100 * 4, 0, &graph_);
  EXPECT_EQ(buckets.size(), 3u);
  EXPECT_NE(BucketOf(0), BucketOf(1));
  EXPECT_NE(BucketOf(1), BucketOf(2));
}

TEST_F(BucketsTest, NodesAreInsertedRightAfterTheLastWriter) {
  Write({10, 20, 30, 40});
  const std::vector<Bucket> buckets = MakeBuckets(gradients_, 30 * 4, 0, &graph_);
  ASSERT_EQ(buckets.size(), 3u);
  InsertWhenFinal(
      buckets, 0,
      [&](size_t i) -> Node {
        return {.what = Collective{}, .operands = {graph_.Whole(buckets[i].value)}};
      },
      &graph_);
  const std::vector<Node>& nodes = graph_.sequences[0].nodes;
  ASSERT_EQ(nodes.size(), 7u);
  const std::vector<size_t> reduces = {2, 4, 6};
  for (size_t i = 0; i < nodes.size(); ++i) {
    const bool expected = std::find(reduces.begin(), reduces.end(), i) != reduces.end();
    EXPECT_EQ(std::holds_alternative<Collective>(nodes[i].what), expected) << i;
  }
}

TEST(BucketsOfProgramTest, TheBucketsOfAJobHoldEveryGradientOnce) {
  for (const TinyJob& job : TinyJobs()) {
    const v1::Program program = CompileTiny(job);
    std::map<uint32_t, int64_t> used;
    for (const v1::Instruction& instruction : SequenceOf(program, "train").instructions()) {
      if (instruction.compute().op() != "adamw") continue;
      used[instruction.operands(0).buffer()] += instruction.operands(0).shape(0) * 4;
    }
    int64_t parameters = 0;
    for (const auto& [buffer, bytes] : used) {
      EXPECT_EQ(program.buffers(buffer).class_(), v1::GRADIENT);
      EXPECT_EQ(program.buffers(buffer).bytes(), bytes) << Describe(job);
      parameters += bytes / 4;
    }
    EXPECT_EQ(parameters, TinyModel(job.family).Parameters()) << Describe(job);
  }
}

}  // namespace
}  // namespace terrace::compiler
