// SPDX-License-Identifier: Apache-2.0
#include "worker/data/document_dataset.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "worker/data/bucket_draw.h"
#include "worker/data/document_samples.h"
#include "worker/data/permutation.h"

namespace terrace {
namespace {

// Never looked at by what counts: attention is causal and padding stands at the end.
constexpr int32_t kPadding = 0;
constexpr int32_t kIgnored = -1;  // as a target: adds nothing to the loss

using DocumentVisitor = std::function<void(int64_t begin, int64_t tokens)>;

// Documents that end with a token, the last one perhaps without.
void VisitByToken(const TokenSegment& segment, int32_t end_of_text, const DocumentVisitor& visit) {
  constexpr int64_t kBlock = 1 << 16;
  std::vector<int32_t> block(kBlock);
  int64_t begin = 0;
  for (int64_t at = 0; at < segment.count; at += kBlock) {
    const std::span<int32_t> ids(block.data(), std::min(kBlock, segment.count - at));
    segment.Read(at, ids);
    for (auto i = std::find(ids.begin(), ids.end(), end_of_text); i != ids.end();
         i = std::find(i + 1, ids.end(), end_of_text)) {
      const int64_t end = at + (i - ids.begin()) + 1;
      visit(begin, end - begin);
      begin = end;
    }
  }
  if (begin < segment.count) visit(begin, segment.count - begin);
}

absl::Status VisitSegment(const TokenSegment& segment, std::optional<int32_t> end_of_text,
                          const DocumentVisitor& visit) {
  if (segment.document_end) {
    int64_t begin = 0;
    for (int64_t i = 0; i < segment.documents; ++i) {
      const int64_t end = segment.document_end(i);
      if (end < begin || end > segment.count) {
        return absl::InvalidArgumentError(absl::StrCat(
            "what is cached of ", segment.path, " ends document ", i, " at token ", end,
            ", must be from ", begin, " to ", segment.count, "; remove the cache's file"));
      }
      visit(begin, end - begin);
      begin = end;
    }
    return absl::OkStatus();
  }
  if (end_of_text.has_value()) {
    VisitByToken(segment, *end_of_text, visit);
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      segment.path,
      " does not say where its documents end, which data.samples: documents has to know; set "
      "data.tokenizer to the one that made it, with an end-of-text token, put Megatron's .idx "
      "beside it, or use samples: stream"));
}

// With positions in the whole sequence.
absl::Status VisitDocuments(const TokenSequence& tokens, std::optional<int32_t> end_of_text,
                            const DocumentVisitor& visit) {
  if (tokens.size() > kMaxDocumentTokens) {
    return absl::InvalidArgumentError(absl::StrCat("there are ", tokens.size(),
                                                   " tokens, data.samples: documents allows ",
                                                   kMaxDocumentTokens));
  }
  int64_t first = 0;
  for (const TokenSegment& segment : tokens.segments()) {
    RETURN_IF_ERROR(VisitSegment(
        segment, end_of_text, [&](int64_t begin, int64_t count) { visit(first + begin, count); }));
    first += segment.count;
  }
  return absl::OkStatus();
}

std::vector<int64_t> LengthsOf(const v1::DataSpec& spec) {
  std::vector<int64_t> lengths(spec.buckets().begin(), spec.buckets().end());
  if (lengths.empty()) lengths.push_back(spec.sequence_length());
  return lengths;
}

class DocumentDataset final : public TokenDataset {
 public:
  explicit DocumentDataset(DocumentSource source)
      : source_(std::move(source)),
        train_(LengthsOf(source_.spec)),
        validation_({source_.spec.sequence_length()}) {}

  absl::Status Open() {
    const TokenSequence& train = source_.train;
    const bool own = source_.validation.size() > 0;
    // Documents that begin in the held-out part.
    const int64_t held_out =
        own ? 0 : std::llround(source_.spec.validation_fraction() * train.size());
    const auto counts_any = [](const TokenSequence& tokens) {
      return [&tokens](int64_t begin, int64_t count) { return tokens.CountsAny(begin, count); };
    };
    RETURN_IF_ERROR(VisitDocuments(train, source_.end_of_text, [&](int64_t begin, int64_t count) {
      const bool trains = begin < train.size() - held_out;
      (trains ? train_ : validation_).Add(begin, count, counts_any(train));
      (trains ? train_tokens_ : validation_tokens_) += count;
    }));
    RETURN_IF_ERROR(
        VisitDocuments(source_.validation, source_.end_of_text, [&](int64_t begin, int64_t count) {
          validation_.Add(begin, count, counts_any(source_.validation));
          validation_tokens_ += count;
        }));
    RETURN_IF_ERROR(CheckEnough(own));
    for (const std::string& left_out :
         {LeftOut("data.train", train_),
          LeftOut(own ? "data.validation" : "the held-out part", validation_)}) {
      if (!left_out.empty()) log::Warn(left_out);
    }
    draw_.emplace(train_.sizes(), MixBits(static_cast<uint64_t>(source_.seed)));
    return absl::OkStatus();
  }

  int64_t tokens(Split split) const override {
    return split == Split::kTrain ? train_tokens_ : validation_tokens_;
  }

  int64_t TrainLength(int64_t step, int64_t global_batch) const override {
    return train_.lengths()[draw_->Draw(step, global_batch).bucket];
  }

  void TrainRow(int64_t step, int64_t row, int64_t global_batch, std::span<int32_t> tokens,
                std::span<int32_t> targets) const override {
    const DrawnBatch batch = draw_->Draw(step, global_batch);
    const int64_t sample = draw_->Sample(batch.bucket, batch.first + row);
    Fill(source_.train, train_.At(batch.bucket, sample), tokens, targets);
  }

  int64_t TrainTokens(int64_t begin, int64_t end, int64_t global_batch) const override {
    if (end - begin > 1) return TokensBefore(end, global_batch) - TokensBefore(begin, global_batch);
    return begin == end ? 0 : TokensOfStep(begin, global_batch);
  }

  void ValidationRow(int64_t index, std::span<int32_t> tokens,
                     std::span<int32_t> targets) const override {
    const TokenSequence& from = source_.validation.size() > 0 ? source_.validation : source_.train;
    Fill(from, validation_.At(0, index % validation_.size()), tokens, targets);
  }

 private:
  static void Fill(const TokenSequence& from, const DocumentSample& sample,
                   std::span<int32_t> tokens, std::span<int32_t> targets) {
    from.Read(sample.begin, tokens.first(sample.count));
    from.ReadCounted(sample.begin + 1, kIgnored, targets.first(sample.count));
    std::fill(tokens.begin() + sample.count, tokens.end(), kPadding);
    std::fill(targets.begin() + sample.count, targets.end(), kIgnored);
  }

  // Of places [begin, end) of the bucket's endless list: a pass has every sample once.
  int64_t TokensOf(int bucket, int64_t begin, int64_t end) const {
    int64_t tokens = 0;
    for (int64_t i = begin; i < end; ++i) {
      tokens += train_.At(bucket, draw_->Sample(bucket, i)).count;
    }
    return tokens;
  }

  int64_t TokensOfStep(int64_t step, int64_t global_batch) const {
    const DrawnBatch batch = draw_->Draw(step, global_batch);
    return TokensOf(batch.bucket, batch.first, batch.first + global_batch);
  }

  // A resumed job asks for all of its past: whole epochs, and in them whole passes of a bucket, are
  // counted at once, the steps of the last epoch one by one.
  int64_t TokensBefore(int64_t step, int64_t global_batch) const {
    const WholeEpochs whole = draw_->WholeEpochsBefore(step, global_batch);
    const std::vector<int64_t> sizes = train_.sizes();
    int64_t tokens = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (whole.batches[i] == 0) continue;
      const auto bucket = static_cast<int>(i);
      const int64_t end = whole.batches[i] * global_batch;
      const int64_t passes = end / sizes[i];
      tokens += passes * train_.tokens(bucket) + TokensOf(bucket, passes * sizes[i], end);
    }
    for (int64_t rest = whole.steps; rest < step; ++rest)
      tokens += TokensOfStep(rest, global_batch);
    return tokens;
  }

  // Of a key, "data.train"; "" where there are none.
  static std::string LeftOut(std::string_view key, const DocumentSamples& samples) {
    if (samples.left_out() == 0) return "";
    return absl::StrCat(samples.left_out(), " samples of ", Absl(key),
                        " are left out: they have no token of an answer, which alone the loss "
                        "counts; raise data.sequence_length where prompts are longer, and give "
                        "answers where there are none");
  }

  absl::Status CheckEnough(bool own) const {
    const auto refuse = [&](const std::string& what, int64_t samples, const std::string& least,
                            const char* way_out, const std::string& left_out) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, samples,
                       " samples with data.samples: documents (each a document of "
                       "two or more tokens, or a piece of one), must be at least ",
                       least, "; ", way_out, left_out.empty() ? "" : "; ", left_out));
    };
    if (train_.size() < source_.global_batch) {
      return refuse("data.train has ", train_.size(),
                    absl::StrCat("train.global_batch ", source_.global_batch),
                    source_.global_batch > 1
                        ? "add documents, lower train.global_batch, or use samples: stream"
                        : "add documents, or use samples: stream",
                    LeftOut("data.train", train_));
    }
    if (validation_.size() > 0) return absl::OkStatus();
    if (own)
      return refuse("data.validation has ", 0, "1", "add documents",
                    LeftOut("data.validation", validation_));
    if (source_.spec.validation_fraction() <= 0) return absl::OkStatus();
    return refuse(absl::StrCat("the last ", source_.spec.validation_fraction() * 100,
                               " % of data.train (data.validation_fraction) has "),
                  0, "1", "raise it, add documents, or name data.validation",
                  LeftOut("the held-out part", validation_));
  }

  const DocumentSource source_;
  DocumentSamples train_;
  DocumentSamples validation_;
  int64_t train_tokens_ = 0, validation_tokens_ = 0;
  std::optional<BucketDraw> draw_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TokenDataset>> OpenDocuments(DocumentSource source) {
  auto dataset = std::make_unique<DocumentDataset>(std::move(source));
  RETURN_IF_ERROR(dataset->Open());
  return dataset;
}

}  // namespace terrace
