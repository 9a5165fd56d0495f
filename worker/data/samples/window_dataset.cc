// SPDX-License-Identifier: Apache-2.0
#include "worker/data/samples/window_dataset.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/status_macros.h"
#include "proto/tokens/window_lengths.h"
#include "worker/data/mixture/source_draw.h"
#include "worker/data/permutation.h"

namespace terrace {
namespace {

// Tokens [begin, begin + count) of a sequence.
struct TokenRange {
  const TokenSequence* tokens = nullptr;
  int64_t begin = 0;
  int64_t count = 0;

  // The range read as a ring, from any position.
  void ReadRing(int64_t position, std::span<int32_t> out) const {
    position %= count;
    const size_t first = std::min<size_t>(out.size(), count - position);
    tokens->Read(begin + position, out.first(first));
    if (first < out.size()) tokens->Read(begin, out.subspan(first));
  }
};

struct Source {
  std::string name;
  TokenRange train;
  TokenRange held_out;
  uint64_t key = 0;  // of the order of its windows
};

std::vector<double> WeightsOf(const std::vector<SourceTokens>& sources) {
  std::vector<double> weights;
  for (const SourceTokens& source : sources) weights.push_back(source.weight);
  return weights;
}

class WindowDataset final : public TokenDataset {
 public:
  WindowDataset(const v1::DataSpec& spec, TokenSequence train,
                const std::vector<SourceTokens>& sources, TokenSequence validation, int64_t seed)
      : train_tokens_(std::move(train)),
        validation_tokens_(std::move(validation)),
        sequence_length_(spec.sequence_length()),
        weights_(WeightsOf(sources)),
        draw_(weights_, MixBits(MixBits(static_cast<uint64_t>(seed)))),
        validation_{&validation_tokens_, 0, validation_tokens_.size()} {
    const uint64_t key = MixBits(static_cast<uint64_t>(seed));
    for (size_t i = 0; i < sources.size(); ++i) {
      const SourceTokens& from = sources[i];
      const int64_t held_out = HeldOutTokens(spec, from.count);
      const int64_t trained = from.count - held_out;
      // Sources of the same size come in orders of their own.
      sources_.push_back({.name = from.name,
                          .train = {&train_tokens_, from.begin, trained},
                          .held_out = {&train_tokens_, from.begin + trained, held_out},
                          .key = i == 0 ? key : MixBits(key + i)});
    }
  }

  int64_t tokens(Split split) const override {
    if (split == Split::kValidation && validation_.count > 0) return validation_.count;
    int64_t tokens = 0;
    for (const Source& source : sources_)
      tokens += split == Split::kTrain ? source.train.count : source.held_out.count;
    return tokens;
  }

  std::vector<SourceView> Sources(int64_t steps, int64_t global_batch) const override {
    const std::vector<int64_t> drawn = draw_.Counts(steps * global_batch);
    std::vector<SourceView> views;
    for (size_t i = 0; i < sources_.size(); ++i) {
      views.push_back(
          {.name = sources_[i].name,
           .weight = weights_[i],
           .tokens = sources_[i].train.count,
           .samples = sources_[i].train.count / sequence_length_,
           .held_out = validation_.count > 0 ? -1 : sources_[i].held_out.count / sequence_length_,
           .drawn = drawn[i]});
    }
    return views;
  }

  int64_t TrainLength(int64_t, int64_t) const override { return sequence_length_; }

  int64_t TrainTokens(int64_t begin, int64_t end, int64_t global_batch) const override {
    return (end - begin) * global_batch * sequence_length_;
  }

  // An epoch of a source cuts the ring of its training tokens into windows, beginning at the
  // epoch's offset, and visits each once.
  void TrainRow(int64_t step, int64_t row, int64_t global_batch,
                const SampleRow& to) const override {
    const SourceDraw::Place place = draw_.At(step * global_batch + row);
    const Source& source = sources_[place.source];
    const uint64_t windows = source.train.count / sequence_length_;
    const auto index = static_cast<uint64_t>(place.index);
    const uint64_t epoch_key = MixBits(source.key ^ MixBits(index / windows));
    const int64_t offset = epoch_key % sequence_length_;
    const int64_t window = Permutation(windows, epoch_key)(index % windows);
    const int64_t position = offset + window * sequence_length_;
    source.train.ReadRing(position, to.tokens);
    source.train.ReadRing(position + 1, to.targets);
    std::fill(to.starts.begin(), to.starts.end(), 0);
  }

  // What is held out of a mixture is a mixture of the same shares, so that few samples, too, tell
  // of all sources.
  void ValidationRow(int64_t index, const SampleRow& to) const override {
    const bool is_own = validation_.count > 0;
    const SourceDraw::Place place = is_own ? SourceDraw::Place{0, index} : draw_.At(index);
    const TokenRange& from = is_own ? validation_ : sources_[place.source].held_out;
    const int64_t windows = (from.count - 1) / sequence_length_;
    const int64_t position = from.begin + place.index % windows * sequence_length_;
    from.tokens->Read(position, to.tokens);
    from.tokens->Read(position + 1, to.targets);
    std::fill(to.starts.begin(), to.starts.end(), 0);
  }

 private:
  const TokenSequence train_tokens_;
  const TokenSequence validation_tokens_;
  const int64_t sequence_length_;
  const std::vector<double> weights_;
  const SourceDraw draw_;
  const TokenRange validation_;  // empty: what is held out
  std::vector<Source> sources_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TokenDataset>> OpenWindows(const v1::DataSpec& spec,
                                                          TokenSequence train,
                                                          std::vector<SourceTokens> sources,
                                                          TokenSequence validation, int64_t seed) {
  for (const SourceTokens& source : sources) {
    RETURN_IF_ERROR(CheckWindowLengths(spec, source.count, validation.size(),
                                       sources.size() > 1 ? source.name : ""));
  }
  return std::make_unique<WindowDataset>(spec, std::move(train), sources, std::move(validation),
                                         seed);
}

}  // namespace terrace
