// Texts that grow: feeds their new tokens to a program that generates, "prefill" where several of a
// text are new and "decode" where one is, and keeps the logits behind each text.
//
// A text that gets longer than the program has room for goes on without its oldest tokens: what is
// left is computed anew, from position 0.
//
// Borrows the VM. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/v1/program.pb.h"
#include "worker/vm/sequence_io.h"
#include "worker/vm/vm.h"

namespace terrace {

class GrowingTexts final : public SequenceIo {
 public:
  // INVALID_ARGUMENT when the program is none that generates.
  static absl::StatusOr<GrowingTexts> Create(const v1::Program& program, Vm* vm);

  int64_t count() const { return static_cast<int64_t>(texts_.size()); }
  int64_t max_length() const { return max_length_; }

  // Appends tokens to a text, for Run(). `expected`: how many more the caller thinks will come;
  // when the text is too long, it loses enough for them, but at most half of what there is room
  // for.
  void Append(int64_t text, std::span<const int32_t> tokens, int64_t expected);
  // Computes what was appended.
  absl::Status Run();

  const std::vector<int32_t>& tokens(int64_t text) const { return texts_[text].tokens; }
  // Behind the last token. REQUIRES: the text has been run and has tokens.
  std::span<const float> logits(int64_t text) const { return texts_[text].logits; }

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

    int64_t waiting() const { return static_cast<int64_t>(tokens.size()) - done; }
  };

  GrowingTexts(Vm* vm, int64_t texts, int64_t max_length, int64_t prefill_tokens)
      : vm_(vm), max_length_(max_length), prefill_tokens_(prefill_tokens), texts_(texts) {}

  Vm* vm_;
  int64_t max_length_;
  int64_t prefill_tokens_;
  std::vector<Text> texts_;
};

}  // namespace terrace
