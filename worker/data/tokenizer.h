// Text to token ids and back: bytes, Hugging Face tokenizer.json (byte-level BPE), SentencePiece
// (*.model).
//
// Thread-safe: const after Load.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace terrace {

class Tokenizer {
 public:
  // "bytes" or a path. The message of a failure names the file and what is wrong with it.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(std::string_view name_or_path);
  virtual ~Tokenizer() = default;

  virtual int64_t vocabulary() const = 0;  // ids are below this
  virtual std::optional<int32_t> end_of_text() const = 0;
  // Appends the ids of `text` (no end-of-text, no special-token parsing of the text's own content).
  virtual void Encode(std::string_view text, std::vector<int32_t>* ids) const = 0;
  virtual std::string Decode(const std::vector<int32_t>& ids) const = 0;
  // Names the exact rule set: part of the key of the token cache (a hash of the file for file-based
  // ones).
  virtual std::string fingerprint() const = 0;
};

}  // namespace terrace
