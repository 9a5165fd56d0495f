// Tokens of a job, memory-mapped, and which of them a rank sees in a step.
//
// Files: .txt and .jsonl (json_line.h), also compressed, are tokenised once into a cache file; .bin
// (uint16/uint32, raw as nanoGPT writes them or with llm.c's 1024-byte header) and Megatron
// .bin/.idx are read in place (docs/formats.md). Each document of a text ends with the tokenizer's
// end-of-text token, where it has one.
//
// A sample is a window of all tokens in a row (samples/window_dataset.h), or with data.samples
// documents a document, with packed several (document_dataset.h), of which the loss counts no
// prompt. Of a mixture each sample comes from one source, as often as its weight says
// (mixture/source_draw.h), and a source that is through begins anew in another order. Sampling is a
// pure function of (seed, step, row): no state to save, exact resume. Thread-safe after Open.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/v1/job.pb.h"
#include "worker/data/special_tokens.h"
#include "worker/data/token_sum.h"

namespace terrace {

// Called with a sentence and a fraction in [0, 1] while tokenising; at most about ten times a
// second.
using DataProgress = std::function<void(std::string_view text, double fraction)>;

class TemplateProcess;

// A source of a mixture, or all of data.train where there is none.
struct SourceView {
  std::string name;     // its path; of several the first, and how many more there are
  double weight = 1;    // its share of all samples
  int64_t tokens = 0;   // without those held out
  int64_t samples = 0;  // of an epoch of it
  // For the validation; negative: data.validation names others.
  int64_t held_out = 0;
  int64_t drawn = 0;  // by the steps that were asked about
  double epochs() const { return static_cast<double>(drawn) / static_cast<double>(samples); }
};

// Of a mixture of which some is held out, the sources of which nothing is: a sentence for each.
// Evaluations see nothing of them.
std::vector<std::string> TellNotHeldOut(const std::vector<SourceView>& sources,
                                        double validation_fraction);

enum class Split { kTrain, kValidation };

// What a row of a batch is written to: as many tokens as the row has.
struct SampleRow {
  std::span<int32_t> tokens;
  std::span<int32_t> targets;  // what follows each token; below 0 where there is none to predict
  std::span<int32_t> starts;   // where in the row each token's document starts; empty: not wanted
};

class TokenDataset {
 public:
  // Tokenises what is not cached yet (under a file lock, so that several ranks share the work of
  // one), checks that every id is below `vocabulary` and that each split holds enough: one window
  // of spec.sequence_length + 1 tokens, or the documents of one batch. Of `train` the seed and the
  // batch matter; `model_config`, the text of the model's config.json, may name the end token.
  // `templates` renders conversations; null: a process is started where there are any, which a
  // confined rank cannot. NOT_FOUND, PERMISSION_DENIED, INVALID_ARGUMENT, with the file, the
  // position and the way out.
  static absl::StatusOr<std::unique_ptr<TokenDataset>> Open(const v1::DataSpec& spec,
                                                            const v1::TrainSpec& train,
                                                            int64_t vocabulary,
                                                            const DataProgress& progress,
                                                            std::string_view model_config = {},
                                                            TemplateProcess* templates = nullptr);
  virtual ~TokenDataset() = default;

  // Of the tokenizer, where a text or the end of documents asked for it.
  const std::optional<SpecialTokens>& special_tokens() const { return special_tokens_; }

  const TokenSums& sums() const { return sums_; }

  virtual int64_t tokens(Split split) const = 0;

  // What the first `steps` steps see of each source; nothing where there are none.
  virtual std::vector<SourceView> Sources([[maybe_unused]] int64_t steps,
                                          [[maybe_unused]] int64_t global_batch) const {
    return {};
  }

  // Tokens of each row of the batch of `step` (0-based): one of data.buckets, or sequence_length.
  virtual int64_t TrainLength(int64_t step, int64_t global_batch) const = 0;
  // Tokens in steps [begin, end) that are followed by another one of their sample: those of
  // documents, prompts included, without padding.
  virtual int64_t TrainTokens(int64_t begin, int64_t end, int64_t global_batch) const = 0;
  // Row `row` of the global batch of `step`, TrainLength() tokens. Windows: a pseudo-random
  // permutation of the non-overlapping ones of each epoch of a source, with a per-epoch offset. The
  // same for every layout. No allocation, no failure: usable inside the step loop.
  virtual void TrainRow(int64_t step, int64_t row, int64_t global_batch,
                        const SampleRow& to) const = 0;
  // Sample `index` of the validation split, in order, wrapping around; sequence_length tokens.
  virtual void ValidationRow(int64_t index, const SampleRow& to) const = 0;

 private:
  std::optional<SpecialTokens> special_tokens_;
  TokenSums sums_;
};

}  // namespace terrace
