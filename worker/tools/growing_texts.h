// Texts that grow: feeds their new tokens to a program that generates, "prefill" where several of a
// text are new, "decode" where one is and "score" where scores of a text's tokens are asked for,
// and keeps the logits behind each text.
//
// A text that gets longer than the program has room for goes on without its oldest tokens: what is
// left is computed anew, from position 0.
//
// Borrows the VM. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/v1/program.pb.h"
#include "worker/vm/sequence_io.h"
#include "worker/vm/vm.h"

namespace terrace {

// INVALID_ARGUMENT where the model has no such token, which a tokenizer may that is larger than the
// model's vocabulary.
absl::Status CheckIds(std::span<const int32_t> ids, int64_t vocabulary);

// Of a token behind what stands before it: natural logarithms of probabilities.
struct TokenScore {
  double logprob = 0;
  std::vector<std::pair<int32_t, double>> likeliest;  // tokens, the likeliest first
};
// `likeliest`: how many of them. REQUIRES: token is below the number of logits.
TokenScore ScoreOf(std::span<const float> logits, int32_t token, int64_t likeliest);

class GrowingTexts final : public SequenceIo {
 public:
  // INVALID_ARGUMENT when the program is none that generates.
  static absl::StatusOr<GrowingTexts> Create(const v1::Program& program, Vm* vm);

  int64_t count() const { return static_cast<int64_t>(texts_.size()); }
  int64_t max_length() const { return max_length_; }
  bool can_score() const { return score_tokens_ > 0; }

  // Appends tokens to a text, for Run(). `expected`: how many more the caller thinks will come;
  // when the text is too long, it loses enough for them, but at most half of what there is room
  // for.
  // With `likeliest` these tokens are scored, each with so many of the likeliest ones.
  // REQUIRES: then can_score().
  void Append(int64_t text, std::span<const int32_t> tokens, int64_t expected,
              std::optional<int64_t> likeliest = std::nullopt);
  // Begins the text anew, without tokens.
  void Clear(int64_t text) { texts_[text] = {}; }
  // Computes what was appended.
  absl::Status Run();

  const std::vector<int32_t>& tokens(int64_t text) const { return texts_[text].tokens; }
  // Those that the model sees: the newest.
  int64_t seen(int64_t text) const {
    return static_cast<int64_t>(texts_[text].tokens.size()) - texts_[text].first;
  }
  // Behind the last token. REQUIRES: the text has been run and has tokens.
  std::span<const float> logits(int64_t text) const { return texts_[text].logits; }

  // Of the tokens that were appended to be scored, but for the first of a text.
  const std::vector<TokenScore>& scores(int64_t text) const { return texts_[text].scores; }

  // Of SequenceIo, while a sequence runs.
  void LoadBatch(int, const BatchTarget&) override {}
  void LoadSchedule(std::span<float, 4>) override {}
  void LoadPrompt(const PromptTarget& to) override;
  void Output(v1::OutputKind kind, std::span<const float> values) override;

 private:
  struct Text {
    std::vector<int32_t> tokens;
    int64_t first = 0;  // the token at position 0
    int64_t done = 0;   // tokens that have been fed or forgotten
    int64_t now = 0;    // tokens of this run
    std::vector<float> logits;
    std::optional<int64_t> likeliest;  // of each score; none: what waits is not scored
    std::vector<TokenScore> scores;

    int64_t waiting() const { return static_cast<int64_t>(tokens.size()) - done; }
  };

  struct Rows {
    int64_t texts, prefill, score;
  };
  GrowingTexts(Vm* vm, const Rows& rows, int64_t max_length)
      : vm_(vm),
        max_length_(max_length),
        prefill_tokens_(rows.prefill / rows.texts),
        score_tokens_(rows.score / rows.texts),
        texts_(rows.texts) {}
  bool ToScore() const;

  Vm* vm_;
  int64_t max_length_;
  int64_t prefill_tokens_;
  int64_t score_tokens_;  // 0: the program scores nothing
  std::vector<Text> texts_;
  int64_t logits_of_text_ = 1;  // rows of the sequence that runs
};

}  // namespace terrace
