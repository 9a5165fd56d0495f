// Text to token ids and back: bytes, Hugging Face tokenizer.json (byte-level BPE), SentencePiece
// (*.model).
//
// Thread-safe: const after Load.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/special_tokens.h"

namespace terrace {

class Tokenizer {
 public:
  // "bytes" or a path. The files beside it tell its special tokens, and so may `model_config`, the
  // text of the model's config.json. The message of a failure names the file and what is wrong with
  // it.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(std::string_view name_or_path,
                                                         std::string_view model_config = {});
  virtual ~Tokenizer() = default;

  virtual int64_t vocabulary() const = 0;  // ids are below this
  virtual const SpecialTokens& special_tokens() const = 0;
  std::optional<int32_t> end_of_text() const {
    const std::optional<SpecialToken>& end = special_tokens().end;
    return end.has_value() ? std::optional(end->id) : std::nullopt;
  }
  // Appends the ids of `text`; none is put in front of them or behind.
  virtual void Encode(std::string_view text, std::vector<int32_t>* ids) const = 0;
  // The same, and for each of these ids where its text ends in `text`, in bytes. False where the
  // tokenizer cannot tell: then `ends` means nothing.
  virtual bool EncodeWithEnds(std::string_view text, std::vector<int32_t>* ids,
                              std::vector<size_t>* ends) const;
  // Ids for special tokens that stand in a text, as conversations have them.
  virtual bool finds_special_tokens() const { return true; }
  virtual std::string Decode(const std::vector<int32_t>& ids) const = 0;
  // Names the exact rules and the end token: part of the key of the token cache (a hash of the file
  // for file-based ones).
  virtual std::string fingerprint() const = 0;
};

}  // namespace terrace
