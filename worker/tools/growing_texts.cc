// SPDX-License-Identifier: Apache-2.0
#include "worker/tools/growing_texts.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

// What a sequence takes and gives at a time.
struct Pass {
  int64_t rows = 0, texts = 0, logits = 0;

  bool absent() const { return rows == 0; }
  // For these texts: as many rows of each, and the logits of one of them or of all.
  bool Fits(int64_t of_texts, int64_t max_length) const {
    return texts == of_texts && rows % texts == 0 && rows / texts <= max_length &&
           (logits == texts || logits == rows);
  }
};

// Absent where there is no such sequence, or where it is no pass over new tokens: of one
// LOAD_PROMPT, and one output of as many rows as it asks for.
Pass PassOf(const v1::Program& program, std::string_view name) {
  Pass pass;
  int inputs = 0, outputs = 0;
  int64_t given = 0;
  for (const v1::Sequence& sequence : program.sequences()) {
    if (sequence.name() != name) continue;
    for (const v1::Instruction& instruction : sequence.instructions()) {
      if (instruction.input().kind() == v1::LOAD_PROMPT) {
        ++inputs;
        pass = {.rows = instruction.operands(0).shape(0),
                .texts = instruction.operands(2).shape(0),
                .logits = instruction.operands(3).shape(0)};
      } else if (instruction.has_output()) {
        ++outputs;
        given = instruction.operands(0).shape(0);
      }
    }
  }
  return inputs == 1 && outputs == 1 && given == pass.logits ? pass : Pass{};
}

}  // namespace

absl::StatusOr<GrowingTexts> GrowingTexts::Create(const v1::Program& program, Vm* vm) {
  const Pass decode = PassOf(program, "decode"), prefill = PassOf(program, "prefill"),
             score = PassOf(program, "score");
  const int64_t texts = decode.texts, max_length = program.rules().sequence_length();
  const bool fit =
      !decode.absent() && decode.rows == texts && decode.Fits(texts, max_length) &&
      prefill.Fits(texts, max_length) &&
      (score.absent() || (score.Fits(texts, max_length) && score.logits == score.rows));
  if (!fit)
    return absl::InvalidArgumentError(
        "the program has no sequences 'prefill' and 'decode' of the same texts");
  const Rows rows = {.texts = texts, .prefill = prefill.rows, .score = score.rows};
  return GrowingTexts(vm, rows, max_length);
}

absl::Status CheckIds(std::span<const int32_t> ids, int64_t vocabulary) {
  for (const int32_t id : ids) {
    if (id >= 0 && id < vocabulary) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "has the token ", id, ", must have tokens of the model alone, which are below ", vocabulary,
        ": the tokenizer knows more than the model was made for"));
  }
  return absl::OkStatus();
}

TokenScore ScoreOf(std::span<const float> logits, int32_t token, int64_t likeliest) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - largest);
  const double log_sum = largest + std::log(sum);
  TokenScore score = {.logprob = logits[token] - log_sum};
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto end = order.begin() + std::min<int64_t>(likeliest, std::ssize(order));
  std::partial_sort(order.begin(), end, order.end(), [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  });
  for (auto id = order.begin(); id != end; ++id)
    score.likeliest.emplace_back(*id, logits[*id] - log_sum);
  return score;
}

void GrowingTexts::Append(int64_t text, std::span<const int32_t> tokens, int64_t expected,
                          std::optional<int64_t> likeliest) {
  Text& grown = texts_[text];
  grown.likeliest = likeliest;
  grown.tokens.insert(grown.tokens.end(), tokens.begin(), tokens.end());
  const auto size = static_cast<int64_t>(grown.tokens.size());
  if (size - grown.first <= max_length_) return;
  const int64_t room = std::clamp<int64_t>(expected, 0, max_length_ / 2);
  grown.first = grown.done = size - (max_length_ - room);
}

bool GrowingTexts::ToScore() const {
  return std::any_of(texts_.begin(), texts_.end(), [](const Text& text) {
    return text.waiting() > 0 && text.likeliest.has_value();
  });
}

absl::Status GrowingTexts::Run() {
  for (;;) {
    int64_t most = 0;
    for (const Text& text : texts_) most = std::max(most, text.waiting());
    if (most == 0) return absl::OkStatus();
    const bool score = ToScore(), one = most == 1 && !score;
    const int64_t at_once = score ? score_tokens_ : one ? 1 : prefill_tokens_;
    for (Text& text : texts_) text.now = std::min(text.waiting(), at_once);
    RETURN_IF_ERROR(vm_->Run(score ? "score" : one ? "decode" : "prefill", this));
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
  }
  logits_of_text_ = static_cast<int64_t>(to.index.size()) / count();
  for (int64_t i = 0; i < count(); ++i) {
    const int64_t last = std::max<int64_t>(texts_[i].now - 1, 0);
    for (int64_t k = 0; k < logits_of_text_; ++k) {
      const int64_t row = logits_of_text_ == 1 ? last : k;
      to.index[i * logits_of_text_ + k] = static_cast<int32_t>(i * rows + row);
    }
  }
}

// [rows of texts,V]: those of texts that have nothing new stay.
void GrowingTexts::Output(v1::OutputKind, std::span<const float> values) {
  const auto vocabulary = static_cast<int64_t>(values.size()) / (logits_of_text_ * count());
  for (int64_t i = 0; i < count(); ++i) {
    Text& text = texts_[i];
    if (text.now == 0) continue;
    const auto logits = [&](int64_t row) {
      return values.subspan((i * logits_of_text_ + row) * vocabulary, vocabulary);
    };
    const auto last = logits(logits_of_text_ == 1 ? 0 : text.now - 1);
    text.logits.assign(last.begin(), last.end());
    for (int64_t row = 0; text.likeliest.has_value() && row < text.now; ++row) {
      const int64_t next = text.done + row + 1;
      if (next >= std::ssize(text.tokens)) break;
      text.scores.push_back(ScoreOf(logits(row), text.tokens[next], *text.likeliest));
    }
  }
}

}  // namespace terrace
