// SPDX-License-Identifier: Apache-2.0
#include "worker/data/document_dataset.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "worker/data/document_rows.h"
#include "worker/data/mixture/document_mixture.h"
#include "worker/data/mixture/source_draw.h"
#include "worker/data/permutation.h"
#include "worker/data/samples/document_ends.h"

namespace terrace {
namespace {

// Never looked at by what counts: attention is causal and padding stands at the end.
constexpr int32_t kPadding = 0;
constexpr int32_t kIgnored = -1;  // as a target: adds nothing to the loss

std::vector<int64_t> LengthsOf(const v1::DataSpec& spec) {
  std::vector<int64_t> lengths(spec.buckets().begin(), spec.buckets().end());
  if (lengths.empty()) lengths.push_back(spec.sequence_length());
  return lengths;
}

// What is read of a source, or of data.validation.
struct Documents {
  Documents(std::vector<int64_t> lengths, bool packs) : rows(std::move(lengths), packs) {}
  void Add(const TokenSequence& from, int64_t begin, int64_t count) {
    rows.Add(begin, count,
             [&from](int64_t at, int64_t tokens) { return from.CountsAny(at, tokens); });
    tokens += count;
  }

  DocumentRows rows;
  int64_t tokens = 0;
};

// Of a key, "data.train"; "" where there are none.
std::string LeftOut(std::string_view key, const DocumentRows& rows) {
  if (rows.left_out() == 0) return "";
  return absl::StrCat(rows.left_out(), " samples of ", Absl(key),
                      " are left out: they have no token of an answer, which alone the loss "
                      "counts; raise data.sequence_length where prompts are longer, and give "
                      "answers where there are none");
}

absl::Status TooFew(std::string_view what, int64_t rows, bool packed, std::string_view least,
                    std::string_view way_out, std::string_view left_out) {
  return absl::InvalidArgumentError(
      absl::StrCat(Absl(what), rows,
                   packed ? " rows of packed samples" : " samples with data.samples: documents",
                   " (", packed ? "a sample is" : "each",
                   " a document of two or more tokens, or a piece of one), must be at least ",
                   Absl(least), "; ", Absl(way_out), left_out.empty() ? "" : "; ", Absl(left_out)));
}

class DocumentDataset final : public TokenDataset {
 public:
  explicit DocumentDataset(DocumentSource source) : source_(std::move(source)) {}

  absl::Status Open() {
    const bool own = source_.validation.size() > 0;
    const size_t count = source_.sources.size();
    std::vector<Documents> train, held_out;
    for (size_t i = 0; i < count; ++i) train.emplace_back(LengthsOf(source_.spec), Packs());
    for (size_t i = 0; i < (own ? 1 : count); ++i)
      held_out.emplace_back(std::vector<int64_t>{source_.spec.sequence_length()}, Packs());
    RETURN_IF_ERROR(ReadTrain(&train, own ? nullptr : &held_out));
    RETURN_IF_ERROR(
        VisitDocuments(source_.validation, source_.end_of_text, [&](int64_t begin, int64_t tokens) {
          held_out[0].Add(source_.validation, begin, tokens);
        }));
    for (std::vector<Documents>* all : {&train, &held_out}) {
      for (Documents& documents : *all) documents.rows.Close();
    }
    RETURN_IF_ERROR(CheckEnough(train, held_out));
    WarnOfLeftOut(train, held_out);
    for (const Documents& documents : train) train_tokens_.push_back(documents.tokens);
    SetDraws(std::move(train), std::move(held_out));
    return absl::OkStatus();
  }

  int64_t tokens(Split split) const override {
    if (split == Split::kValidation) return validation_tokens_;
    return std::accumulate(train_tokens_.begin(), train_tokens_.end(), int64_t{0});
  }

  std::vector<SourceView> Sources(int64_t steps, int64_t global_batch) const override {
    const std::vector<int64_t> drawn = train_->RowsBefore(steps, global_batch);
    std::vector<SourceView> views;
    for (size_t i = 0; i < drawn.size(); ++i) {
      views.push_back({.name = source_.sources[i].name,
                       .weight = source_.sources[i].weight,
                       .tokens = train_tokens_[i],
                       .samples = train_->rows(static_cast<int>(i)).size(),
                       .held_out = source_.validation.size() > 0 ? -1 : validation_[i].size(),
                       .drawn = drawn[i]});
    }
    return views;
  }

  int64_t TrainLength(int64_t step, int64_t global_batch) const override {
    return train_->rows(0).lengths()[train_->Bucket(step, global_batch)];
  }

  void TrainRow(int64_t step, int64_t row, int64_t global_batch,
                const SampleRow& to) const override {
    const DocumentPlace place = train_->Row(step, row, global_batch);
    Fill(source_.train, train_->rows(place.source), place.bucket, place.row, to);
  }

  int64_t TrainTokens(int64_t begin, int64_t end, int64_t global_batch) const override {
    if (end - begin > 1)
      return train_->TokensBefore(end, global_batch) - train_->TokensBefore(begin, global_batch);
    return begin == end ? 0 : train_->TokensOfStep(begin, global_batch);
  }

  // What is held out of a mixture is a mixture of the same shares, so that few samples, too, tell
  // of all sources.
  void ValidationRow(int64_t index, const SampleRow& to) const override {
    const TokenSequence& from = source_.validation.size() > 0 ? source_.validation : source_.train;
    const SourceDraw::Place place = validation_draw_->At(index);
    const DocumentRows& rows = validation_[place.source];
    Fill(from, rows, 0, place.index % rows.size(), to);
  }

 private:
  bool Packs() const { return source_.spec.samples() == "packed"; }

  // Padding counts as a document of its own.
  static void Fill(const TokenSequence& from, const DocumentRows& rows, int bucket, int64_t row,
                   const SampleRow& to) {
    int64_t at = 0;
    rows.ForEach(bucket, row, [&](const DocumentSample& sample) {
      from.Read(sample.begin, to.tokens.subspan(at, sample.count));
      from.ReadCounted(sample.begin + 1, kIgnored, to.targets.subspan(at, sample.count));
      if (!to.starts.empty())
        std::fill_n(to.starts.begin() + at, sample.count, static_cast<int32_t>(at));
      at += sample.count;
    });
    std::fill(to.tokens.begin() + at, to.tokens.end(), kPadding);
    std::fill(to.targets.begin() + at, to.targets.end(), kIgnored);
    if (!to.starts.empty())
      std::fill(to.starts.begin() + at, to.starts.end(), static_cast<int32_t>(at));
  }

  // `held_out`: of each source, the documents that begin in its last tokens; null: all are trained.
  absl::Status ReadTrain(std::vector<Documents>* train, std::vector<Documents>* held_out) const {
    size_t i = 0;
    return VisitDocuments(source_.train, source_.end_of_text, [&](int64_t begin, int64_t count) {
      const auto end = [&] { return source_.sources[i].begin + source_.sources[i].count; };
      while (i + 1 < source_.sources.size() && begin >= end()) ++i;
      const double fraction = held_out == nullptr ? 0 : source_.spec.validation_fraction();
      const int64_t trained_end = end() - std::llround(fraction * source_.sources[i].count);
      Documents& to = begin < trained_end ? (*train)[i] : (*held_out)[i];
      to.Add(source_.train, begin, count);
    });
  }

  // For messages: "data.train", of a mixture with the source.
  std::string KeyOf(size_t source) const {
    return source_.sources.size() == 1 ? "data.train"
                                       : absl::StrCat("data.train: ", source_.sources[source].name);
  }
  std::string HeldOutOf(size_t source) const {
    return source_.validation.size() > 0
               ? "data.validation"
               : absl::StrCat("the held-out part", source_.sources.size() == 1 ? "" : " of ",
                              source_.sources.size() == 1 ? "" : source_.sources[source].name);
  }

  void WarnOfLeftOut(const std::vector<Documents>& train,
                     const std::vector<Documents>& held_out) const {
    const auto warn = [](const std::string& text) {
      if (!text.empty()) log::Warn(text);
    };
    for (size_t i = 0; i < train.size(); ++i) warn(LeftOut(KeyOf(i), train[i].rows));
    for (size_t i = 0; i < held_out.size(); ++i) warn(LeftOut(HeldOutOf(i), held_out[i].rows));
  }

  absl::Status CheckEnough(const std::vector<Documents>& train,
                           const std::vector<Documents>& held_out) const {
    int64_t all = 0, all_held_out = 0;
    for (size_t i = 0; i < train.size(); ++i) {
      const DocumentRows& rows = train[i].rows;
      all += rows.size();
      if (rows.size() > 0 || train.size() == 1) continue;
      return TooFew(KeyOf(i) + " has ", 0, Packs(), "1", "add documents, or leave the source out",
                    LeftOut(KeyOf(i), rows));
    }
    if (all < source_.global_batch) {
      return TooFew("data.train has ", all, Packs(),
                    absl::StrCat("train.global_batch ", source_.global_batch),
                    source_.global_batch > 1
                        ? "add documents, lower train.global_batch, or use samples: stream"
                        : "add documents, or use samples: stream",
                    LeftOut("data.train", train[0].rows));
    }
    for (const Documents& documents : held_out) all_held_out += documents.rows.size();
    if (all_held_out > 0) return absl::OkStatus();
    const std::string left_out = LeftOut(HeldOutOf(0), held_out[0].rows);
    if (source_.validation.size() > 0)
      return TooFew("data.validation has ", 0, Packs(), "1", "add documents", left_out);
    if (source_.spec.validation_fraction() <= 0) return absl::OkStatus();
    return TooFew(absl::StrCat("the last ", source_.spec.validation_fraction() * 100,
                               " % of data.train (data.validation_fraction) has "),
                  0, Packs(), "1", "raise it, add documents, or name data.validation", left_out);
  }

  // A source of which nothing is held out has no part in the validation.
  void SetDraws(std::vector<Documents> train, std::vector<Documents> held_out) {
    const uint64_t key = MixBits(static_cast<uint64_t>(source_.seed));
    std::vector<double> weights, validation_weights;
    for (const SourceTokens& source : source_.sources) weights.push_back(source.weight);
    std::vector<DocumentRows> rows;
    for (Documents& documents : train) rows.push_back(std::move(documents.rows));
    for (size_t i = 0; i < held_out.size(); ++i) {
      validation_tokens_ += held_out[i].tokens;
      validation_weights.push_back(held_out[i].rows.size() > 0 ? weights[i] : 0);
      validation_.push_back(std::move(held_out[i].rows));
    }
    train_.emplace(std::move(rows), weights, key);
    validation_draw_.emplace(validation_weights, MixBits(MixBits(key)));
  }

  const DocumentSource source_;
  std::optional<DocumentMixture> train_;
  std::vector<DocumentRows> validation_;  // of data.validation, else of each source
  std::optional<SourceDraw> validation_draw_;
  std::vector<int64_t> train_tokens_;  // of each source
  int64_t validation_tokens_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TokenDataset>> OpenDocuments(DocumentSource source) {
  auto dataset = std::make_unique<DocumentDataset>(std::move(source));
  RETURN_IF_ERROR(dataset->Open());
  return dataset;
}

}  // namespace terrace
