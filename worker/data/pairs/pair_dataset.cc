// SPDX-License-Identifier: Apache-2.0
#include "worker/data/pairs/pair_dataset.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
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
constexpr int64_t kOfAPair = 2;   // rows

struct Document {
  int64_t begin = 0, tokens = 0;
};

// What is read of a source, or of data.validation.
class Pairs {
 public:
  explicit Pairs(int64_t length) : rows_({length}, /*packs=*/false), length_(length) {}

  void Add(const TokenSequence& from, const Document& chosen, const Document& rejected) {
    tokens_ += chosen.tokens + rejected.tokens;
    const int64_t first = Shown(chosen), second = Shown(rejected);
    if (!from.CountsAny(chosen.begin + 1, first) || !from.CountsAny(rejected.begin + 1, second)) {
      ++left_out_;
      return;
    }
    cut_ += first < chosen.tokens - 1 || second < rejected.tokens - 1;
    rows_.AddOne(chosen.begin, first + second);
    pairs_.push_back({.of = {{chosen.begin, first}, {rejected.begin, second}}});
  }

  DocumentRows& rows() { return rows_; }
  int64_t size() const { return static_cast<int64_t>(pairs_.size()); }
  int64_t tokens() const { return tokens_; }
  int64_t left_out() const { return left_out_; }
  int64_t cut() const { return cut_; }
  // The tokens of the answer that is `which` of the pair, each with one behind it.
  const Document& At(int64_t pair, int64_t which) const { return pairs_[pair].of[which]; }

 private:
  struct Pair {
    Document of[kOfAPair];
  };
  // The last token of a document is only a target.
  int64_t Shown(const Document& document) const {
    return std::clamp<int64_t>(document.tokens - 1, 0, length_);
  }

  DocumentRows rows_;  // a pair each, for whoever draws them
  std::vector<Pair> pairs_;
  const int64_t length_;
  int64_t tokens_ = 0, left_out_ = 0, cut_ = 0;
};

// Of a key, "data.train".
void Warn(const std::string& key, const Pairs& pairs, int64_t length) {
  if (pairs.left_out() > 0) {
    log::Warn(absl::StrCat(pairs.left_out(), " pairs of ", key,
                           " are left out: one of their answers has no token within "
                           "data.sequence_length ",
                           length, "; raise it where prompts are longer"));
  }
  if (pairs.cut() > 0) {
    log::Warn(absl::StrCat(pairs.cut(), " pairs of ", key, " are longer than data.sequence_length ",
                           length, " and are cut at their end"));
  }
}

class PairDataset final : public TokenDataset {
 public:
  explicit PairDataset(DocumentSource source)
      : source_(std::move(source)), length_(source_.spec.sequence_length()) {}

  absl::Status Open() {
    const bool own = source_.validation.size() > 0;
    for (size_t i = 0; i < source_.sources.size(); ++i) train_.emplace_back(length_);
    for (size_t i = 0; i < (own ? 1 : source_.sources.size()); ++i) held_out_.emplace_back(length_);
    RETURN_IF_ERROR(ReadTrain(!own));
    RETURN_IF_ERROR(VisitPairs(source_.validation, [&](const Document& chosen, const Document& no) {
      held_out_[0].Add(source_.validation, chosen, no);
    }));
    RETURN_IF_ERROR(CheckEnough());
    for (size_t i = 0; i < train_.size(); ++i) Warn(KeyOf(i), train_[i], length_);
    for (const Pairs& pairs : held_out_)
      Warn(own ? "data.validation" : "the held-out part of data.train", pairs, length_);
    SetDraws();
    return absl::OkStatus();
  }

  int64_t tokens(Split split) const override {
    const std::vector<Pairs>& of = split == Split::kTrain ? train_ : held_out_;
    return std::accumulate(of.begin(), of.end(), int64_t{0},
                           [](int64_t sum, const Pairs& pairs) { return sum + pairs.tokens(); });
  }

  std::vector<SourceView> Sources(int64_t steps, int64_t global_batch) const override {
    const std::vector<int64_t> drawn = drawn_->RowsBefore(steps, global_batch / kOfAPair);
    std::vector<SourceView> views;
    for (size_t i = 0; i < drawn.size(); ++i) {
      views.push_back({.name = source_.sources[i].name,
                       .weight = source_.sources[i].weight,
                       .tokens = train_[i].tokens(),
                       .samples = train_[i].size(),
                       .held_out = source_.validation.size() > 0 ? -1 : held_out_[i].size(),
                       .drawn = drawn[i]});
    }
    return views;
  }

  int64_t TrainLength(int64_t, int64_t) const override { return length_; }

  void TrainRow(int64_t step, int64_t row, int64_t global_batch,
                const SampleRow& to) const override {
    const DocumentPlace place = drawn_->Row(step, row / kOfAPair, global_batch / kOfAPair);
    Fill(source_.train, train_[place.source].At(place.row, row % kOfAPair), to);
  }

  int64_t TrainTokens(int64_t begin, int64_t end, int64_t global_batch) const override {
    const int64_t pairs = global_batch / kOfAPair;
    if (end - begin > 1)
      return drawn_->TokensBefore(end, pairs) - drawn_->TokensBefore(begin, pairs);
    return begin == end ? 0 : drawn_->TokensOfStep(begin, pairs);
  }

  void ValidationRow(int64_t index, const SampleRow& to) const override {
    const TokenSequence& from = source_.validation.size() > 0 ? source_.validation : source_.train;
    const SourceDraw::Place place = validation_draw_->At(index / kOfAPair);
    const Pairs& pairs = held_out_[place.source];
    Fill(from, pairs.At(place.index % pairs.size(), index % kOfAPair), to);
  }

 private:
  template <typename Visit>
  absl::Status VisitPairs(const TokenSequence& from, const Visit& visit) const {
    std::optional<Document> chosen;
    return VisitDocuments(from, source_.end_of_text, [&](int64_t begin, int64_t tokens) {
      if (!chosen.has_value()) {
        chosen = Document{begin, tokens};
        return;
      }
      visit(*chosen, Document{begin, tokens});
      chosen.reset();
    });
  }

  // `holds_out`: the pairs that begin in the last tokens of each source are not trained.
  absl::Status ReadTrain(bool holds_out) {
    size_t i = 0;
    return VisitPairs(source_.train, [&](const Document& chosen, const Document& rejected) {
      const auto end = [&] { return source_.sources[i].begin + source_.sources[i].count; };
      while (i + 1 < source_.sources.size() && chosen.begin >= end()) ++i;
      const double fraction = holds_out ? source_.spec.validation_fraction() : 0;
      const int64_t trained_end =
          end() - std::llround(fraction * static_cast<double>(source_.sources[i].count));
      Pairs& to = chosen.begin < trained_end ? train_[i] : held_out_[i];
      to.Add(source_.train, chosen, rejected);
    });
  }

  static void Fill(const TokenSequence& from, const Document& shown, const SampleRow& to) {
    const auto count = static_cast<size_t>(shown.tokens);
    from.Read(shown.begin, to.tokens.first(count));
    from.ReadCounted(shown.begin + 1, kIgnored, to.targets.first(count));
    std::fill(to.tokens.begin() + shown.tokens, to.tokens.end(), kPadding);
    std::fill(to.targets.begin() + shown.tokens, to.targets.end(), kIgnored);
    if (to.starts.empty()) return;
    std::fill_n(to.starts.begin(), count, 0);
    std::fill(to.starts.begin() + shown.tokens, to.starts.end(),
              static_cast<int32_t>(shown.tokens));
  }

  std::string KeyOf(size_t source) const {
    return source_.sources.size() == 1 ? "data.train"
                                       : absl::StrCat("data.train: ", source_.sources[source].name);
  }

  absl::Status TooFew(const std::string& what, const Pairs& pairs, int64_t least,
                      const char* way_out) const {
    return absl::InvalidArgumentError(absl::StrCat(
        what, " has ", pairs.size(), " pairs of answers, must have at least ", least, "; ", way_out,
        pairs.left_out() == 0
            ? ""
            : absl::StrCat("; ", pairs.left_out(),
                           " pairs are left out, as one of their answers has no token within "
                           "data.sequence_length ",
                           length_)));
  }

  absl::Status CheckEnough() const {
    int64_t all = 0, all_held_out = 0;
    for (size_t i = 0; i < train_.size(); ++i) {
      all += train_[i].size();
      if (train_.size() > 1 && train_[i].size() == 0)
        return TooFew(KeyOf(i), train_[i], 1, "add pairs, or leave the source out");
    }
    const int64_t least = std::max<int64_t>(1, source_.global_batch / kOfAPair);
    if (all < least) {
      return TooFew("data.train", train_[0], least,
                    "add pairs, or lower train.global_batch, of which two sequences are a pair");
    }
    for (const Pairs& pairs : held_out_) all_held_out += pairs.size();
    if (all_held_out > 0) return absl::OkStatus();
    if (source_.validation.size() > 0)
      return TooFew("data.validation", held_out_[0], 1, "add pairs");
    if (source_.spec.validation_fraction() <= 0) return absl::OkStatus();
    return TooFew("the held-out part of data.train (data.validation_fraction)", held_out_[0], 1,
                  "raise it, add pairs, or name data.validation");
  }

  void SetDraws() {
    const uint64_t key = MixBits(static_cast<uint64_t>(source_.seed));
    std::vector<double> weights, validation_weights;
    std::vector<DocumentRows> rows;
    for (size_t i = 0; i < train_.size(); ++i) {
      weights.push_back(source_.sources[i].weight);
      rows.push_back(std::move(train_[i].rows()));
    }
    for (size_t i = 0; i < held_out_.size(); ++i)
      validation_weights.push_back(held_out_[i].size() > 0 ? weights[i] : 0);
    drawn_.emplace(std::move(rows), weights, key);
    validation_draw_.emplace(validation_weights, MixBits(MixBits(key)));
  }

  const DocumentSource source_;
  const int64_t length_;
  std::vector<Pairs> train_;     // of each source
  std::vector<Pairs> held_out_;  // of data.validation, else of each source
  std::optional<DocumentMixture> drawn_;
  std::optional<SourceDraw> validation_draw_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TokenDataset>> OpenPairs(DocumentSource source) {
  auto dataset = std::make_unique<PairDataset>(std::move(source));
  RETURN_IF_ERROR(dataset->Open());
  return dataset;
}

}  // namespace terrace
