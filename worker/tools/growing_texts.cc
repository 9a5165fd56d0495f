// SPDX-License-Identifier: Apache-2.0
#include "worker/tools/growing_texts.h"

#include <algorithm>

#include "base/status_macros.h"

namespace terrace {
namespace {

// Rows of the tokens that a sequence takes at a time; 0 where there is none.
int64_t PromptRows(const v1::Program& program, std::string_view name) {
  for (const v1::Sequence& sequence : program.sequences()) {
    if (sequence.name() != name) continue;
    for (const v1::Instruction& instruction : sequence.instructions()) {
      if (instruction.input().kind() == v1::LOAD_PROMPT) return instruction.operands(0).shape(0);
    }
  }
  return 0;
}

}  // namespace

absl::StatusOr<GrowingTexts> GrowingTexts::Create(const v1::Program& program, Vm* vm) {
  const int64_t texts = PromptRows(program, "decode"), rows = PromptRows(program, "prefill");
  const int64_t max_length = program.rules().sequence_length();
  if (texts < 1 || rows < texts || rows % texts != 0 || max_length < rows / texts)
    return absl::InvalidArgumentError(
        "the program has no sequences 'prefill' and 'decode' of the same texts");
  return GrowingTexts(vm, texts, max_length, rows / texts);
}

void GrowingTexts::Append(int64_t text, std::span<const int32_t> tokens, int64_t expected) {
  Text& grown = texts_[text];
  grown.tokens.insert(grown.tokens.end(), tokens.begin(), tokens.end());
  const auto size = static_cast<int64_t>(grown.tokens.size());
  if (size - grown.first <= max_length_) return;
  const int64_t room = std::clamp<int64_t>(expected, 0, max_length_ / 2);
  grown.first = grown.done = size - (max_length_ - room);
}

absl::Status GrowingTexts::Run() {
  for (;;) {
    int64_t most = 0;
    for (const Text& text : texts_) most = std::max(most, text.waiting());
    if (most == 0) return absl::OkStatus();
    const int64_t at_once = most > 1 ? prefill_tokens_ : 1;
    for (Text& text : texts_) text.now = std::min(text.waiting(), at_once);
    RETURN_IF_ERROR(vm_->Run(most > 1 ? "prefill" : "decode", this));
    for (Text& text : texts_) text.done += text.now;
  }
}

void GrowingTexts::LoadPrompt(const PromptTarget& to) {
  const int64_t rows = static_cast<int64_t>(to.tokens.size()) / count();
  std::fill(to.tokens.begin(), to.tokens.end(), 0);
  std::fill(to.positions.begin(), to.positions.end(), 0);
  for (int64_t i = 0; i < count(); ++i) {
    const Text& text = texts_[i];
    const int64_t position = text.done - text.first;
    for (int64_t row = 0; row < text.now; ++row) {
      to.tokens[i * rows + row] = text.tokens[text.done + row];
      to.positions[i * rows + row] = static_cast<int32_t>(position + row);
    }
    to.spans[2 * i] = static_cast<int32_t>(position);
    to.spans[2 * i + 1] = static_cast<int32_t>(text.now);
    to.index[i] = static_cast<int32_t>(i * rows + std::max<int64_t>(text.now - 1, 0));
  }
}

// [texts,V]: those of texts that have nothing new stay.
void GrowingTexts::Output(v1::OutputKind, std::span<const float> values) {
  const size_t vocabulary = values.size() / texts_.size();
  for (size_t i = 0; i < texts_.size(); ++i) {
    if (texts_[i].now == 0) continue;
    const auto logits = values.subspan(i * vocabulary, vocabulary);
    texts_[i].logits.assign(logits.begin(), logits.end());
  }
}

}  // namespace terrace
