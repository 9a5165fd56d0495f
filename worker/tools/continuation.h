// One continuation of a prompt: draws its tokens, knows its text, and when it ends.
//
// Borrows the tokenizer. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "worker/data/tokenizer.h"
#include "worker/tools/sampler.h"

namespace terrace {

struct ContinuationOptions {
  int64_t tokens = 200;
  SamplerOptions sampler;
  std::vector<std::string> stops;  // texts that end it, none of them empty
};

class Continuation {
 public:
  // `index`: continuations of one seed draw different numbers; the first draws those of the seed.
  Continuation(const ContinuationOptions& options, const Tokenizer& tokenizer,
               std::vector<int32_t> prompt, int64_t index);

  const std::vector<int32_t>& ids() const { return ids_; }
  int64_t prompt_tokens() const { return static_cast<int64_t>(prompt_tokens_); }
  int64_t new_tokens() const { return static_cast<int64_t>(ids_.size() - prompt_tokens_); }
  bool done() const { return finish_ != nullptr; }
  // "stop": at a token or a text that ends it; "length": as many tokens as were asked for.
  const char* finish() const { return finish_; }
  const std::string& text() const { return text_; }

  // Draws the next token. False where it ends the text, and so is none of it. REQUIRES: not done.
  bool Add(std::span<const float> logits);
  // What can be shown since the last call: whole characters that belong to no stop.
  std::string_view Shown();

 private:
  std::string Made() const;

  const ContinuationOptions options_;
  const Tokenizer& tokenizer_;
  Sampler sampler_;
  std::vector<int32_t> ids_;
  size_t prompt_tokens_ = 0;
  std::string prompt_text_;  // as the tokenizer decodes it
  std::string text_;
  size_t shown_ = 0;
  const char* finish_ = nullptr;
};

}  // namespace terrace
