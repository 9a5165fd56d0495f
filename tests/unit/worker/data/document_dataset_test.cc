// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "worker/data/token_dataset.h"

namespace terrace {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kBatch = 6;

// Document i has `lengths[i]` bytes, each of value i.
class DocumentDatasetTest : public ::testing::Test {
 protected:
  DocumentDatasetTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "terrace-test-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    spec_.set_tokenizer("bytes");
    spec_.set_samples("documents");
    spec_.set_sequence_length(16);
    for (int64_t length : {4, 8, 16}) spec_.add_buckets(length);
    spec_.set_cache(folder_ + "/cache");
    spec_.add_validation(Put("v.jsonl", "{\"text\": \"validate\"}\n{\"text\": \"x\"}\n"));
    train_.set_seed(3);
    train_.set_global_batch(kBatch);
  }
  ~DocumentDatasetTest() override { std::filesystem::remove_all(folder_); }

  std::string Put(const std::string& name, const std::string& content) {
    std::ofstream(folder_ + "/" + name, std::ios::binary) << content;
    return folder_ + "/" + name;
  }
  template <typename T>
  static std::string Bytes(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
  }
  std::string JsonLines(const std::vector<int>& lengths) {
    std::string lines;
    for (size_t i = 0; i < lengths.size(); ++i) {
      absl::StrAppend(&lines, "{\"text\": \"", std::string(lengths[i], char('A' + i)), "\"}\n");
    }
    return Put("t.jsonl", lines);
  }
  absl::StatusOr<std::unique_ptr<TokenDataset>> Open() {
    return TokenDataset::Open(spec_, train_, 1000, nullptr);
  }
  std::string OpenError() { return std::string(Open().status().message()); }

  struct Row {
    std::vector<int32_t> tokens, targets;
    int64_t count() const {
      return std::count_if(targets.begin(), targets.end(), [](int32_t t) { return t >= 0; });
    }
  };
  static Row RowOf(const TokenDataset& dataset, int64_t step, int64_t row) {
    const int64_t length = dataset.TrainLength(step, kBatch);
    Row out = {std::vector<int32_t>(length), std::vector<int32_t>(length)};
    dataset.TrainRow(step, row, kBatch, {.tokens = out.tokens, .targets = out.targets});
    return out;
  }

  std::string folder_;
  v1::DataSpec spec_;
  v1::TrainSpec train_;
};

// Lengths 2 .. 13 and one that is cut: 16 + 16 + 7 to predict.
std::vector<int> Lengths() {
  std::vector<int> lengths;
  for (int i = 0; i < 12; ++i) lengths.push_back(2 + i);
  lengths.push_back(40);
  return lengths;
}

// "ab" is a prompt and "wxyz" its answer: w is the target of b.
TEST_F(DocumentDatasetTest, TheLossCountsAnswersAlone) {
  std::string lines;
  for (int i = 0; i < kBatch; ++i)
    absl::StrAppend(&lines, R"({"prompt": "ab", "completion": "wxyz"})", "\n");
  spec_.add_train(Put("t.jsonl", lines));
  spec_.clear_validation();
  spec_.add_validation(Put("answers.jsonl", R"({"prompt": "validate", "completion": "!"})"));
  const auto dataset = Open();
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const Row row = RowOf(**dataset, 0, 3);
  EXPECT_THAT(row.tokens, ElementsAre('a', 'b', 'w', 'x', 'y', 0, 0, 0));
  EXPECT_THAT(row.targets, ElementsAre(-1, 'w', 'x', 'y', 'z', -1, -1, -1));
  std::vector<int32_t> tokens(16), targets(16);
  (*dataset)->ValidationRow(0, {.tokens = tokens, .targets = targets});
  EXPECT_EQ(std::count_if(targets.begin(), targets.end(), [](int32_t t) { return t >= 0; }), 1);
  EXPECT_EQ(targets[7], '!');
}

// Also the first token of a prompt is a target of none, since nothing stands before it.
TEST_F(DocumentDatasetTest, AllTokensCountWhereTheSpecSaysSo) {
  std::string lines;
  for (int i = 0; i < kBatch; ++i)
    absl::StrAppend(&lines, R"({"prompt": "ab", "completion": "wxyz"})", "\n");
  spec_.add_train(Put("t.jsonl", lines));
  EXPECT_THAT(RowOf(**Open(), 0, 0).targets, ElementsAre(-1, 'w', 'x', 'y', 'z', -1, -1, -1));
  spec_.set_loss_on("all");
  EXPECT_THAT(RowOf(**Open(), 0, 0).targets, ElementsAre('b', 'w', 'x', 'y', 'z', -1, -1, -1));
  spec_.set_loss_on("answers");
  EXPECT_THAT(RowOf(**Open(), 0, 0).targets, ElementsAre(-1, 'w', 'x', 'y', 'z', -1, -1, -1));
}

// A template ends its conversations itself, and a cache of another one is not taken.
TEST_F(DocumentDatasetTest, ConversationsAreRenderedAndAnswersCount) {
  std::string lines;
  for (int i = 0; i < kBatch; ++i) {
    absl::StrAppend(&lines, R"({"messages": [{"role": "user", "content": "q"}, )",
                    R"({"role": "assistant", "content": "yes"}]})", "\n");
  }
  spec_.add_train(Put("t.jsonl", lines));
  EXPECT_THAT(OpenError(), HasSubstr("t.jsonl:1: a conversation needs a chat template"));
  const std::string turns =
      "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}"
      "{% if add_generation_prompt %}a{% endif %}";
  spec_.set_chat_template(Put("chat.jinja", turns));
  const auto dataset = Open();
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  const Row row = RowOf(**dataset, 0, 3);
  EXPECT_THAT(row.tokens, ElementsAre('u', 'q', 'a', 'y', 'e', 0, 0, 0));
  EXPECT_THAT(row.targets, ElementsAre(-1, -1, 'y', 'e', 's', -1, -1, -1));
  Put("chat.jinja", turns + "!");
  EXPECT_THAT(OpenError(), HasSubstr("data.loss_on: all"));
  spec_.set_loss_on("all");
  EXPECT_THAT(RowOf(**Open(), 0, 3).targets, ElementsAre('q', 'a', 'y', 'e', 's', '!', -1, -1));
}

// The cache tells of prompts as the text did.
TEST_F(DocumentDatasetTest, PromptsAreKnownFromTheCache) {
  std::string lines = R"({"text": "no prompt"})"
                      "\n";
  for (int i = 0; i < kBatch; ++i)
    absl::StrAppend(&lines, R"({"instruction": "Add.", "input": "1 1", "output": "2"})", "\n");
  spec_.add_train(Put("t.jsonl", lines));
  spec_.clear_buckets();
  spec_.set_sequence_length(300);
  const auto count = [&] {
    const auto dataset = Open();
    EXPECT_TRUE(dataset.ok()) << dataset.status();
    std::map<int64_t, int> counts;
    for (int64_t i = 0; i < kBatch + 1; ++i)
      ++counts[RowOf(**dataset, i / kBatch, i % kBatch).count()];
    return counts;
  };
  const std::map<int64_t, int> first = count();
  EXPECT_GE(first.at(1), kBatch - 1);
  EXPECT_EQ(count(), first);
}

// Whoever changes the file makes the rank read the text again, not write beyond its memory.
TEST_F(DocumentDatasetTest, ACacheWhoseSpansMakeNoSenseIsMadeAnew) {
  std::string lines;
  for (int i = 0; i < kBatch; ++i)
    absl::StrAppend(&lines, R"({"prompt": "ab", "completion": "wxyz"})", "\n");
  spec_.add_train(Put("t.jsonl", lines));
  ASSERT_TRUE(Open().ok());
  for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/cache")) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("t-") || !name.ends_with(".tokens")) continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-16, std::ios::end);
    const uint64_t backwards[2] = {30, 2};
    file.write(reinterpret_cast<const char*>(backwards), sizeof(backwards));
  }
  const auto dataset = Open();
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  for (int64_t row = 0; row < kBatch; ++row) EXPECT_EQ(RowOf(**dataset, 0, row).count(), 4);
}

TEST_F(DocumentDatasetTest, ACacheWhoseDocumentsEndNowhereIsRefused) {
  spec_.add_train(JsonLines(Lengths()));
  ASSERT_TRUE(Open().ok());
  for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/cache")) {
    if (entry.path().extension() != ".tokens") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-8, std::ios::end);
    const uint64_t beyond = 1'000'000;
    file.write(reinterpret_cast<const char*>(&beyond), sizeof(beyond));
  }
  EXPECT_THAT(OpenError(), HasSubstr("remove the cache's file"));
}

TEST_F(DocumentDatasetTest, SamplesThatAreAllPromptAreLeftOut) {
  std::string lines;
  for (int i = 0; i < kBatch; ++i) {
    absl::StrAppend(&lines, "{\"prompt\": \"", std::string(40, 'p'),
                    "\", \"completion\": \"a\"}\n");
  }
  spec_.add_train(Put("t.jsonl", lines));
  const auto dataset = Open();
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  // Of 16 + 16 + 8 tokens to predict the last 8 have the answer.
  for (int64_t row = 0; row < kBatch; ++row) {
    EXPECT_EQ(RowOf(**dataset, 0, row).targets.size(), 8u);
    EXPECT_EQ(RowOf(**dataset, 0, row).count(), 1);
  }
  spec_.clear_train();
  spec_.add_train(Put("empty.jsonl", "{\"prompt\": \"only this\", \"completion\": \"\"}\n"));
  EXPECT_THAT(OpenError(), HasSubstr("1 samples of data.train are left out"));
}

TEST_F(DocumentDatasetTest, EveryDocumentStandsAloneInTheSmallestBucketThatHoldsIt) {
  spec_.add_train(JsonLines(Lengths()));
  const auto dataset = Open().value();
  EXPECT_EQ(dataset->tokens(Split::kTrain), (2 + 13) * 12 / 2 + 40);
  std::map<int32_t, int64_t> seen;  // document -> targets in one pass
  // 15 samples: 5 epochs of 2.5 batches are passes of whole batches of all buckets together.
  constexpr int64_t kPasses = 60;
  for (int64_t step = 0; step < kPasses * 15 / kBatch; ++step) {
    for (int64_t row = 0; row < kBatch; ++row) {
      const Row one = RowOf(*dataset, step, row);
      const int64_t count = one.count();
      const auto length = static_cast<int64_t>(one.tokens.size());
      EXPECT_TRUE(length == 16 || count <= length);
      EXPECT_GT(count, length == 4 ? 0 : length / 2) << "a smaller bucket would hold it";
      for (int64_t t = 0; t < length; ++t) {
        EXPECT_EQ(one.tokens[t], t < count ? one.tokens[0] : 0);
        EXPECT_EQ(one.targets[t], t < count ? one.tokens[0] : -1);
      }
      seen[one.tokens[0]] += count;
    }
  }
  const std::vector<int> lengths = Lengths();
  ASSERT_EQ(seen.size(), lengths.size());
  for (const auto& [letter, targets] : seen) {
    EXPECT_EQ(targets, kPasses * (lengths[letter - 'A'] - 1)) << "document " << letter - 'A';
  }
}

TEST_F(DocumentDatasetTest, TooFewSamplesForABatchAreRefusedWithWhatCanStillBeDone) {
  spec_.add_train(Put("t.jsonl", "{\"text\": \"x\"}\n"));  // nothing to predict
  EXPECT_THAT(OpenError(), HasSubstr("data.train has 0 samples"));
  EXPECT_THAT(OpenError(), HasSubstr("lower train.global_batch"));
  train_.set_global_batch(1);
  EXPECT_THAT(OpenError(), HasSubstr("must be at least train.global_batch 1; add documents, or"));
}

TEST_F(DocumentDatasetTest, TargetsAreTheNextTokensAlsoWhereADocumentIsCut) {
  spec_.set_sequence_length(4);
  spec_.clear_buckets();
  train_.set_global_batch(1);
  spec_.add_train(Put("one.txt", "abcdefghij"));
  const auto dataset = Open().value();
  std::set<std::string> rows;
  for (int64_t step = 0; step < 3; ++step) {
    std::vector<int32_t> tokens(4), targets(4);
    dataset->TrainRow(step, 0, 1, {.tokens = tokens, .targets = targets});
    std::string text;
    for (int t = 0; t < 4; ++t) {
      text += tokens[t] > 0 ? static_cast<char>(tokens[t]) : '.';
      text += targets[t] > 0 ? static_cast<char>(targets[t]) : '.';
    }
    rows.insert(text);
  }
  EXPECT_THAT(rows, ElementsAre("abbccdde", "effgghhi", "ij......"));
}

TEST_F(DocumentDatasetTest, AnotherProcessAndAnyStepSeeTheSameRows) {
  spec_.add_train(JsonLines(Lengths()));
  const auto dataset = Open().value();
  std::vector<Row> rows;
  std::set<int64_t> lengths;
  for (int64_t step = 0; step < 30; ++step) {
    lengths.insert(dataset->TrainLength(step, kBatch));
    for (int64_t row = 0; row < kBatch; ++row) rows.push_back(RowOf(*dataset, step, row));
  }
  EXPECT_THAT(lengths, ElementsAre(4, 8, 16));
  const auto resumed = Open().value();
  for (int64_t step = 29; step >= 0; --step) {
    for (int64_t row = kBatch - 1; row >= 0; --row) {
      const Row again = RowOf(*resumed, step, row);
      EXPECT_EQ(again.tokens, rows[step * kBatch + row].tokens);
      EXPECT_EQ(again.targets, rows[step * kBatch + row].targets);
    }
  }
}

TEST_F(DocumentDatasetTest, TokensAreThoseThatCount) {
  spec_.add_train(JsonLines(Lengths()));
  const auto dataset = Open().value();
  int64_t total = 0;
  for (int64_t step = 0; step < 100; ++step) {
    EXPECT_EQ(dataset->TrainTokens(0, step, kBatch), total);
    int64_t here = 0;
    for (int64_t row = 0; row < kBatch; ++row) here += RowOf(*dataset, step, row).count();
    EXPECT_EQ(dataset->TrainTokens(step, step + 1, kBatch), here);
    total += here;
  }
  EXPECT_EQ(dataset->TrainTokens(20, 100, kBatch), total - dataset->TrainTokens(0, 20, kBatch));
}

TEST_F(DocumentDatasetTest, TokensOfALongPastAreCountedByEpochsAndEqualThoseOfItsSteps) {
  spec_.add_train(JsonLines(Lengths()));
  const auto dataset = Open().value();
  constexpr int64_t kFrom = 10'000, kTo = 20'000;
  int64_t steps = 0;
  for (int64_t step = kFrom; step < kTo; ++step)
    steps += dataset->TrainTokens(step, step + 1, kBatch);
  EXPECT_EQ(dataset->TrainTokens(kFrom, kTo, kBatch), steps);
  for (int64_t end = 0, sum = 0; end < 500; ++end) {
    ASSERT_EQ(dataset->TrainTokens(0, end, kBatch), sum)
        << end << " steps, in the middle of epochs";
    sum += dataset->TrainTokens(end, end + 1, kBatch);
  }
  // Step by step this would take hours.
  constexpr int64_t kLongAgo = int64_t{1} << 40;
  const int64_t before = dataset->TrainTokens(0, kLongAgo, kBatch);
  EXPECT_EQ(dataset->TrainTokens(0, kLongAgo + 1, kBatch) - before,
            dataset->TrainTokens(kLongAgo, kLongAgo + 1, kBatch));
}

TEST_F(DocumentDatasetTest, ValidationDocumentsFollowEachOtherAtFullLength) {
  spec_.add_train(JsonLines(Lengths()));
  const auto dataset = Open().value();
  std::vector<int32_t> tokens(16), targets(16);
  for (int64_t index : {0, 1, 2}) {  // "x" has nothing to predict
    dataset->ValidationRow(index, {.tokens = tokens, .targets = targets});
    EXPECT_EQ(tokens[0], 'v');
    EXPECT_EQ(targets[6], 'e');
    EXPECT_EQ(targets[7], -1);
    EXPECT_EQ(targets[15], -1);
  }
}

TEST_F(DocumentDatasetTest, TheDocumentsAtTheEndAreHeldOut) {
  spec_.clear_validation();
  spec_.set_validation_fraction(0.2);
  spec_.add_train(JsonLines({8, 8, 8, 8, 8, 8, 8, 8, 8, 8}));
  const auto dataset = Open().value();
  EXPECT_EQ(dataset->tokens(Split::kTrain), 64);
  EXPECT_EQ(dataset->tokens(Split::kValidation), 16);
  std::vector<int32_t> tokens(16), targets(16);
  dataset->ValidationRow(1, {.tokens = tokens, .targets = targets});
  EXPECT_EQ(tokens[0], 'A' + 9);
  for (int64_t step = 0; step < 20; ++step) {
    for (int64_t row = 0; row < kBatch; ++row) {
      EXPECT_LT(RowOf(*dataset, step, row).tokens[0], 'A' + 8);
    }
  }
}

// ---- packed -------------------------------------------------------------------------------------

// Document i has lengths[i] - 1 tokens with one to predict; those of 3 + 13, 4 + 12, ... fill rows.
TEST_F(DocumentDatasetTest, PackedDocumentsShareRowsAndSayWhereTheyStart) {
  spec_.clear_buckets();
  spec_.set_samples("packed");
  train_.set_global_batch(2);
  spec_.add_train(JsonLines({4, 14, 5, 13, 17, 6}));
  const auto opened = Open();
  ASSERT_TRUE(opened.ok()) << opened.status();
  const TokenDataset& dataset = **opened;
  std::map<int32_t, int> seen;  // by document: how often in two epochs of two steps
  for (int64_t step = 0; step < 4; ++step) {
    ASSERT_EQ(dataset.TrainLength(step, 2), 16);
    for (int64_t row = 0; row < 2; ++row) {
      std::vector<int32_t> tokens(16), targets(16), starts(16);
      dataset.TrainRow(step, row, 2, {.tokens = tokens, .targets = targets, .starts = starts});
      for (int i = 0; i < 16; ++i) {
        const bool first = i == 0 || starts[i] != starts[i - 1];
        EXPECT_EQ(first, starts[i] == i) << "row " << row << ", token " << i;
        EXPECT_EQ(tokens[starts[i]], tokens[i]) << "one document from its start on";
        // A document's last target is its last token; padding has none.
        EXPECT_EQ(targets[i], tokens[i] == 0 ? -1 : tokens[i]);
        if (first && tokens[i] != 0) ++seen[tokens[i]];
      }
    }
  }
  EXPECT_EQ(seen.size(), 6);
  for (const auto& [document, times] : seen) EXPECT_EQ(times, 2) << document;
  // 3 + 13, 4 + 12, 16 and 5 tokens.
  EXPECT_EQ(dataset.TrainTokens(0, 2, 2), 53);
  EXPECT_EQ(dataset.TrainTokens(0, 200, 2), 100 * 53);
}

TEST_F(DocumentDatasetTest, TooFewPackedRowsAreRefused) {
  spec_.clear_buckets();
  spec_.set_samples("packed");
  spec_.add_train(JsonLines({4, 4, 4, 4, 4, 4, 4, 4}));
  EXPECT_THAT(OpenError(), HasSubstr("data.train has 2 rows of packed samples"));
}

// ---- where documents end ------------------------------------------------------------------------

TEST_F(DocumentDatasetTest, AMegatronIndexTellsItsDocuments) {
  const std::vector<uint16_t> tokens = {5, 5, 5, 6, 6, 6, 6, 7, 7};
  std::string index("MMIDIDX\0\0", 9);
  index += Bytes<uint64_t>({1}) + "\x08" + Bytes<uint64_t>({4, 4});
  index += Bytes<int32_t>({3, 2, 2, 2}) + Bytes<int64_t>({0, 6, 10, 14});
  // Document 1 is two sequences.
  Put("m.idx", index + Bytes<int64_t>({0, 1, 3, 4}));
  spec_.add_train(Put("m.bin", Bytes(tokens)));
  train_.set_global_batch(3);
  const auto dataset = Open().value();
  EXPECT_EQ(dataset->TrainTokens(0, 1, 3), 2 + 3 + 1);
  Put("m.idx", index + Bytes<int64_t>({0, 3, 1, 4}));
  EXPECT_THAT(OpenError(), HasSubstr("document 2 begins at sequence 1, must be from 3 to 4"));
}

TEST_F(DocumentDatasetTest, OtherTokensEndTheirDocumentsWithTheTokenizersEndOfText) {
  // gpt2.json's end-of-text; llm.c's files begin with it.
  const uint16_t end = 560;
  spec_.add_train(Put("raw.bin", Bytes<uint16_t>({end, 1, 2, 3, end, 9, end, end, 4, 5})));
  EXPECT_THAT(OpenError(), HasSubstr("raw.bin does not say where its documents end"));
  spec_.set_tokenizer(std::string(TERRACE_TESTDATA) + "/gpt2.json");
  train_.set_global_batch(3);
  const auto dataset = Open().value();
  EXPECT_EQ(dataset->TrainTokens(0, 1, 3), 3 + 1 + 1) << "1 2 3 end, 9 end, 4 5";
}

// ---- too little ---------------------------------------------------------------------------------

TEST_F(DocumentDatasetTest, TooFewDocumentsAreRefusedWithTheNumber) {
  spec_.add_train(JsonLines({5, 5, 5, 1, 1}));
  EXPECT_THAT(OpenError(), HasSubstr("data.train has 3 samples"));
  EXPECT_THAT(OpenError(), HasSubstr("train.global_batch 6; add documents"));
  train_.set_global_batch(3);
  EXPECT_TRUE(Open().ok());
  spec_.clear_validation();
  spec_.set_validation_fraction(0.01);
  EXPECT_THAT(OpenError(), HasSubstr("(data.validation_fraction) has 0 samples"));
  spec_.add_validation(Put("short.jsonl", "{\"text\": \"x\"}\n"));
  EXPECT_THAT(OpenError(), HasSubstr("data.validation has 0 samples"));
}

}  // namespace
}  // namespace terrace
