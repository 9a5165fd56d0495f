// SPDX-License-Identifier: Apache-2.0
#include "worker/train/train_io.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

using testing::ElementsAre;

// Every token of a row is the row's number, every target the step's.
class RowDataset final : public TokenDataset {
 public:
  int64_t tokens(Split) const override { return 0; }
  int64_t TrainLength(int64_t, int64_t) const override { return 4; }
  int64_t TrainTokens(int64_t, int64_t, int64_t) const override { return 0; }
  void TrainRow(int64_t step, int64_t row, int64_t global_batch,
                const SampleRow& to) const override {
    EXPECT_EQ(global_batch, 12);
    EXPECT_EQ(to.tokens.size(), 4);
    for (int32_t& token : to.tokens) token = static_cast<int32_t>(row);
    for (int32_t& target : to.targets) target = static_cast<int32_t>(step);
  }
  void ValidationRow(int64_t index, const SampleRow& to) const override {
    for (int32_t& token : to.tokens) token = static_cast<int32_t>(index);
  }
};

// Two ranks, three micro-batches of two rows each.
v1::StepRules Rules() {
  v1::StepRules rules;
  rules.set_micro_batches(3);
  rules.set_micro_batch(2);
  rules.set_data_parallel(2);
  rules.set_sequence_length(4);
  return rules;
}

std::vector<int32_t> FirstTokens(const std::vector<int32_t>& batch) { return {batch[0], batch[4]}; }

TEST(TrainIoTest, RanksAndMicroBatchesTakeTheRowsOfTheGlobalBatchInTurn) {
  const v1::StepRules rules = Rules();
  const RowDataset dataset;
  TrainIo first(rules, dataset, 0), second(rules, dataset, 1);
  std::vector<int32_t> tokens(8), targets(8), seen;
  for (int micro_batch = 0; micro_batch < 3; ++micro_batch) {
    for (TrainIo* io : {&first, &second}) {
      io->SetStep(5);
      io->LoadBatch(micro_batch, {.tokens = tokens, .targets = targets});
      EXPECT_THAT(targets, testing::Each(5));
      for (int32_t row : FirstTokens(tokens)) seen.push_back(row);
    }
  }
  EXPECT_THAT(seen, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
}

// Tokens and targets of a row tell their place in it.
class PlaceDataset final : public TokenDataset {
 public:
  int64_t tokens(Split) const override { return 0; }
  int64_t TrainLength(int64_t, int64_t) const override { return 4; }
  int64_t TrainTokens(int64_t, int64_t, int64_t) const override { return 0; }
  void TrainRow(int64_t, int64_t row, int64_t, const SampleRow& to) const override {
    for (size_t t = 0; t < to.tokens.size(); ++t) {
      to.tokens[t] = static_cast<int32_t>(100 * row + t);
      to.targets[t] = to.tokens[t] + 1;
      if (!to.starts.empty()) to.starts[t] = to.tokens[t] - 1;
    }
  }
  void ValidationRow(int64_t index, const SampleRow& to) const override {
    TrainRow(0, index, 0, to);
  }
};

TEST(TrainIoTest, StartsAreCutAsTokensAre) {
  const v1::StepRules rules = Rules();
  const PlaceDataset dataset;
  TrainIo io(rules, dataset, 0);
  io.SetStep(0);
  std::vector<int32_t> tokens(8), starts(8);
  io.LoadBatch(0, {.tokens = tokens, .starts = starts});
  for (size_t i = 0; i < starts.size(); ++i) EXPECT_EQ(starts[i], tokens[i] - 1);
  // A stage between the first and the last asks for nothing else.
  std::vector<int32_t> alone(8);
  io.LoadBatch(0, {.starts = alone});
  EXPECT_EQ(alone, starts);
}

TEST(TrainIoTest, RanksOfOneContextTakeTheirPiecesOfTheSameRows) {
  v1::StepRules rules = Rules();
  rules.set_sequence_length(8);
  const PlaceDataset dataset;
  std::vector<int32_t> tokens(8), targets(8);
  TrainIo straight(rules, dataset, 0, {.ranks = 2, .index = 1});
  straight.LoadBatch(0, {.tokens = tokens, .targets = targets});
  EXPECT_THAT(tokens, ElementsAre(4, 5, 6, 7, 104, 105, 106, 107));
  EXPECT_THAT(targets, ElementsAre(5, 6, 7, 8, 105, 106, 107, 108));
  TrainIo zigzag(rules, dataset, 0, {.ranks = 2, .index = 1, .zigzag = true});
  zigzag.LoadBatch(0, {.tokens = tokens, .targets = targets});
  EXPECT_THAT(tokens, ElementsAre(2, 3, 4, 5, 102, 103, 104, 105));
  EvalIo eval(rules, dataset, 0, {.ranks = 2, .index = 0, .zigzag = true});
  eval.Start();
  eval.Next();
  eval.LoadBatch(0, {.tokens = tokens, .targets = targets});
  EXPECT_THAT(tokens, ElementsAre(0, 1, 6, 7, 100, 101, 106, 107));
}

TEST(TrainIoTest, AStageMayWantTokensOrTargetsAlone) {
  const v1::StepRules rules = Rules();
  const PlaceDataset dataset;
  TrainIo io(rules, dataset, 1);
  std::vector<int32_t> batch(8);
  io.LoadBatch(0, {.tokens = batch});
  EXPECT_THAT(batch, ElementsAre(200, 201, 202, 203, 300, 301, 302, 303));
  io.LoadBatch(0, {.targets = batch});
  EXPECT_THAT(batch, ElementsAre(201, 202, 203, 204, 301, 302, 303, 304));
}

// Dropout asks for them on every stage: the same token has the same place on every rank.
TEST(TrainIoTest, PlacesArePositionsAndNumbersOfSequencesInTheRun) {
  v1::StepRules rules = Rules();
  rules.set_sequence_length(8);
  const RowDataset dataset;
  TrainIo io(rules, dataset, 1, {.ranks = 2, .index = 1, .zigzag = true});
  io.SetStep(5);
  std::vector<int32_t> places(16);
  io.LoadBatch(2, {.places = places});
  // 12 sequences a step; the last two of step 5 are numbers 70 and 71.
  EXPECT_THAT(places, ElementsAre(2, 70, 3, 70, 4, 70, 5, 70, 2, 71, 3, 71, 4, 71, 5, 71));
}

TEST(TrainIoTest, EvaluationCountsOnOverItsRuns) {
  const v1::StepRules rules = Rules();
  const RowDataset dataset;
  EvalIo io(rules, dataset, 1);
  std::vector<int32_t> tokens(8), targets(8);
  for (int start = 0; start < 2; ++start) {
    io.Start();
    io.Next();
    io.LoadBatch(0, {.tokens = tokens, .targets = targets});
    EXPECT_THAT(FirstTokens(tokens), ElementsAre(2, 3));
    io.Next();
    io.LoadBatch(0, {.tokens = tokens, .targets = targets});
    EXPECT_THAT(FirstTokens(tokens), ElementsAre(6, 7));
  }
}

TEST(TrainIoTest, EvaluationLossIsTheMeanOverAllTokens) {
  const v1::StepRules rules = Rules();
  const RowDataset dataset;
  EvalIo io(rules, dataset, 0);
  io.Start();
  EXPECT_EQ(io.loss(), 0);
  io.Output(v1::LOSS_TOTAL, std::vector<float>{30, 10});
  io.Output(v1::LOSS_TOTAL, std::vector<float>{10, 30});
  EXPECT_DOUBLE_EQ(io.loss(), 1.0);
  EXPECT_EQ(io.tokens(), 40);
}

TEST(TrainIoTest, StepStatisticsComeFromTheGradientScale) {
  const v1::StepRules rules = Rules();
  const RowDataset dataset;
  TrainIo io(rules, dataset, 0);
  io.Output(v1::STEP_STATS, std::vector<float>{0.5f, 2.0f, 3.0f, 1.0f});
  EXPECT_EQ(io.stats().grad_norm, 2);
  EXPECT_EQ(io.stats().loss, 3);
  EXPECT_TRUE(io.stats().skipped);
}

}  // namespace
}  // namespace terrace
