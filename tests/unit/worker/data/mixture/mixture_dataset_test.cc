// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/unit/worker/data/token_dataset_fixture.h"
#include "worker/data/token_dataset.h"

namespace terrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Sources of one letter each, so that a sample says where it comes from: of `letter` so many
// documents of so many bytes, by length.
class MixtureTest : public TokenDatasetTest {
 protected:
  void AddSource(char letter, const std::map<int, int>& documents, double weight) {
    std::string lines;
    for (const auto& [length, count] : documents) {
      // The first byte tells documents of a source apart.
      for (int i = 0; i < count; ++i)
        absl::StrAppend(&lines, R"({"text": ")", std::string(1, static_cast<char>('0' + i % 10)),
                        std::string(length - 1, letter), "\"}\n");
    }
    spec_.add_train(Put(std::string(1, letter) + ".jsonl", lines));
    AddWeight(1, weight);
  }
  void AddWeight(int files, double weight) {
    v1::MixtureSource* source = spec_.add_mixture();
    source->set_files(files);
    source->set_weight(weight);
  }
  void Documents(std::vector<int64_t> buckets = {}) {
    spec_.set_samples("documents");
    for (const int64_t length : buckets) spec_.add_buckets(length);
    train_.set_global_batch(kBatch);
  }

  struct Row {
    std::vector<int32_t> tokens, targets;
    bool operator<(const Row& other) const { return tokens < other.tokens; }
    bool operator==(const Row&) const = default;
  };
  static Row RowOf(const TokenDataset& dataset, int64_t step, int64_t row) {
    const int64_t length = dataset.TrainLength(step, kBatch);
    Row got = {std::vector<int32_t>(length), std::vector<int32_t>(length)};
    dataset.TrainRow(step, row, kBatch, {.tokens = got.tokens, .targets = got.targets});
    return got;
  }
  // The letter of a row, which is its second token.
  static char SourceOf(const Row& row) { return static_cast<char>(row.tokens[1]); }

  static constexpr int64_t kBatch = 4;
};

TEST_F(MixtureTest, WindowsComeByTheirWeights) {
  spec_.set_validation_fraction(0);
  spec_.add_train(Put("a.txt", std::string(4000, 'a')));
  AddWeight(1, 3);
  spec_.add_train(Put("b.txt", std::string(50, 'b')));
  spec_.add_train(Put("c.txt", std::string(50, 'b')));
  AddWeight(2, 1);
  const auto dataset = Open().value();
  std::map<char, int> seen;
  for (int step = 0; step < 1000; ++step) {
    for (int row = 0; row < kBatch; ++row) ++seen[SourceOf(RowOf(*dataset, step, row))];
  }
  EXPECT_NEAR(seen['a'], 3000, 2);
  EXPECT_EQ(seen['a'] + seen['b'], 4000) << "no window has two sources";
  const std::vector<SourceView> views = dataset->Sources(1000, kBatch);
  ASSERT_EQ(views.size(), 2u);
  EXPECT_DOUBLE_EQ(views[0].weight, 0.75);
  EXPECT_EQ(views[0].drawn, seen['a']);
  EXPECT_EQ(views[1].drawn, seen['b']);
  EXPECT_EQ(views[1].tokens, 100);
  EXPECT_EQ(views[1].samples, 100 / 8);
  EXPECT_DOUBLE_EQ(views[1].epochs(), seen['b'] / 12.0);
  EXPECT_THAT(views[1].name, HasSubstr("b.txt and 1 more"));
}

// The n-th sample of a source is what it would be alone, but for the order of the epoch.
TEST_F(MixtureTest, ASourceThatEndsBeginsAnewInAnotherOrder) {
  spec_.set_validation_fraction(0);
  std::string text;
  for (int i = 0; i < 10; ++i) text += std::string(8, static_cast<char>('0' + i));
  spec_.add_train(Put("a.txt", text));
  AddWeight(1, 1);
  spec_.add_train(Put("z.txt", std::string(800, 'z')));
  AddWeight(1, 1);
  const auto dataset = Open().value();
  std::vector<std::multiset<Row>> passes(1);
  std::vector<std::vector<Row>> orders(1);
  for (int64_t step = 0; orders.size() < 4; ++step) {
    for (int64_t row = 0; row < kBatch; ++row) {
      const Row got = RowOf(*dataset, step, row);
      if (SourceOf(got) == 'z') continue;
      if (orders.back().size() == 10) orders.emplace_back();
      orders.back().push_back(got);
    }
  }
  // Blocks reorder what is near: a pass of ten windows lies within four blocks.
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
  EXPECT_EQ(dataset->Sources(2000, kBatch)[0].drawn, 4000);
}

TEST_F(MixtureTest, PlainListsAreOneSourceAsTheyWere) {
  spec_.set_validation_fraction(0);
  spec_.add_train(Put("a.txt", Letters(80)));
  spec_.add_train(Put("b.txt", Letters(70)));
  const auto plain = Open().value();
  AddWeight(2, 0.3);
  const auto mixture = Open().value();
  for (int64_t step = 0; step < 30; ++step) {
    for (int64_t row = 0; row < kBatch; ++row)
      EXPECT_EQ(RowOf(*plain, step, row), RowOf(*mixture, step, row));
  }
  EXPECT_EQ(plain->Sources(30, kBatch)[0].drawn, 120);
  EXPECT_EQ(plain->Sources(30, kBatch)[0].samples, 18);
}

TEST_F(MixtureTest, TheLastTokensOfEachSourceAreHeldOut) {
  spec_.set_validation_fraction(0.1);
  spec_.add_train(Put("a.txt", std::string(900, 'a') + std::string(100, 'A')));
  AddWeight(1, 1);
  spec_.add_train(Put("b.txt", std::string(1800, 'b') + std::string(200, 'B')));
  AddWeight(1, 3);
  const auto dataset = Open().value();
  EXPECT_EQ(dataset->tokens(Split::kTrain), 2700);
  EXPECT_EQ(dataset->tokens(Split::kValidation), 300);
  std::vector<int32_t> tokens(8), targets(8);
  std::map<char, int> seen;
  for (int i = 0; i < 320; ++i) {
    dataset->ValidationRow(i, {.tokens = tokens, .targets = targets});
    ++seen[static_cast<char>(tokens[1])];
  }
  EXPECT_EQ(seen.size(), 2u);
  EXPECT_NEAR(seen['B'], 240, 1);
}

TEST_F(MixtureTest, ASourceOfWhichNothingIsHeldOutIsTold) {
  spec_.set_sequence_length(16);
  spec_.set_validation_fraction(0.1);
  Documents();
  AddSource('a', {{4, 40}}, 1);
  AddSource('b', {{16, 3}}, 1);  // the last of three begins before the last tenth
  const auto dataset = Open().value();
  const std::vector<SourceView> views = dataset->Sources(10, kBatch);
  EXPECT_EQ(views[0].held_out, 4);
  EXPECT_EQ(views[1].held_out, 0);
  EXPECT_THAT(
      TellNotHeldOut(views, spec_.validation_fraction()),
      testing::ElementsAre(AllOf(HasSubstr("nothing of " + spec_.train(1)), HasSubstr("last 10 %"),
                                 HasSubstr("data.validation_fraction"))));
  spec_.add_validation(Put("v.jsonl", "{\"text\": \"abc\"}\n"));
  EXPECT_TRUE(TellNotHeldOut(Open().value()->Sources(10, kBatch), 0.1).empty());
}

TEST_F(MixtureTest, TheSumsSayWhereASourceEnds) {
  spec_.add_train(Put("a.txt", "aaaaaaaaaaaaaaaaaaaabbbbbbbbbb"));
  AddWeight(1, 1);
  spec_.add_train(Put("b.txt", "cccccccccccccccccccc"));
  AddWeight(1, 1);
  const TokenSums before = Open().value()->sums();
  Put("a.txt", "aaaaaaaaaaaaaaaaaaaa");
  Put("b.txt", "bbbbbbbbbbcccccccccccccccccccc");
  const TokenSums moved = Open().value()->sums();
  EXPECT_EQ(moved.train, before.train);
  EXPECT_THAT(before.sources, testing::ElementsAre(30, 20));
  EXPECT_THAT(moved.sources, testing::ElementsAre(20, 30));
  spec_.clear_mixture();
  EXPECT_TRUE(Open().value()->sums().sources.empty()) << "it is one source";
}

TEST_F(MixtureTest, DocumentsComeByTheirWeightsAndEachOnceAnEpoch) {
  spec_.set_sequence_length(8);
  Documents();
  AddSource('a', {{4, 10}}, 1);
  AddSource('b', {{6, 7}, {3, 3}}, 4);
  spec_.add_validation(Put("v.jsonl", "{\"text\": \"abc\"}\n"));
  const auto dataset = Open().value();
  std::map<char, int> seen;
  std::map<char, std::vector<Row>> rows;
  int64_t tokens = 0;
  for (int64_t step = 0; step < 250; ++step) {
    for (int64_t row = 0; row < kBatch; ++row) {
      const Row got = RowOf(*dataset, step, row);
      ++seen[SourceOf(got)];
      rows[SourceOf(got)].push_back(got);
      tokens += std::count_if(got.targets.begin(), got.targets.end(),
                              [](int32_t target) { return target >= 0; });
    }
    ASSERT_EQ(dataset->TrainTokens(0, step + 1, kBatch), tokens) << step;
  }
  EXPECT_NEAR(seen['a'], 200, 2);
  const std::vector<SourceView> views = dataset->Sources(250, kBatch);
  EXPECT_EQ(views[0].drawn, seen['a']);
  EXPECT_EQ(views[1].drawn, seen['b']);
  EXPECT_EQ(views[1].samples, 10);
  // Twenty passes or so over the ten documents of "a": none is seen much oftener than another.
  std::map<int32_t, int> times;
  for (const Row& row : rows['a']) ++times[row.tokens[0]];
  EXPECT_EQ(times.size(), 10u);
  for (const auto& [first, count] : times) EXPECT_NEAR(count, 20, 2) << first;
}

TEST_F(MixtureTest, BucketsComeByWhatTheSourcesGive) {
  spec_.set_sequence_length(16);
  Documents({4, 16});
  AddSource('a', {{4, 40}}, 3);            // all in the bucket of 4
  AddSource('b', {{4, 10}, {12, 10}}, 1);  // half in that of 16
  spec_.add_validation(Put("v.jsonl", "{\"text\": \"abc\"}\n"));
  const auto dataset = Open().value();
  std::map<char, int> seen;
  std::map<int64_t, int> lengths;
  int64_t tokens = 0;
  for (int64_t step = 0; step < 800; ++step) {
    ++lengths[dataset->TrainLength(step, kBatch)];
    for (int64_t row = 0; row < kBatch; ++row) {
      const Row got = RowOf(*dataset, step, row);
      ++seen[SourceOf(got)];
      tokens += std::count_if(got.targets.begin(), got.targets.end(),
                              [](int32_t target) { return target >= 0; });
    }
  }
  EXPECT_EQ(dataset->TrainTokens(0, 800, kBatch), tokens);
  EXPECT_EQ(dataset->TrainTokens(300, 800, kBatch) + dataset->TrainTokens(0, 300, kBatch), tokens);
  EXPECT_NEAR(lengths[16], 100, 2) << "an eighth: half of a quarter";
  EXPECT_NEAR(seen['a'], 2400, 10);
  EXPECT_EQ(dataset->Sources(800, kBatch)[0].drawn, seen['a']);
}

TEST_F(MixtureTest, ASourceThatIsTooShortIsNamed) {
  spec_.set_validation_fraction(0);
  spec_.add_train(Put("a.txt", Letters(100)));
  AddWeight(1, 1);
  spec_.add_train(Put("b.txt", Letters(8)));
  AddWeight(1, 1);
  EXPECT_THAT(OpenError(), AllOf(HasSubstr("data.train: "), HasSubstr("b.txt has 8 tokens")));
  Documents();
  spec_.set_train(0, Put("a.jsonl", "{\"text\": \"abcdef\"}\n{\"text\": \"abcdef\"}\n"));
  spec_.set_train(1, Put("b.jsonl", "{\"text\": \"a\"}\n"));
  EXPECT_THAT(OpenError(),
              AllOf(HasSubstr("b.jsonl has 0 samples"), HasSubstr("leave the source")));
}

TEST_F(MixtureTest, FilesThatAreNotThoseOfTheSourcesAreRefused) {
  spec_.add_train(Put("a.txt", Letters(100)));
  AddWeight(2, 1);
  EXPECT_THAT(OpenError(), HasSubstr("not those of its sources"));
  spec_.mutable_mixture(0)->set_files(1);
  spec_.mutable_mixture(0)->set_weight(0);
  EXPECT_THAT(OpenError(), HasSubstr("must be a number above 0"));
}

}  // namespace
}  // namespace terrace
