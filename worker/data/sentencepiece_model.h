// A wall around the SentencePiece library: its header defines absl::string_view itself, so no file may include it together
// with Abseil.
//
// Thread-safe after construction.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace terrace {

class SentencePieceModel {
 public:
  SentencePieceModel();
  ~SentencePieceModel();
  // The content of a *.model file. False, with the library's words in `error`, when it is none.
  bool Parse(std::string_view serialized, std::string* error);

  int32_t pieces() const;
  int32_t end_of_sentence() const;  // negative: the model has none
  void Encode(std::string_view text, std::vector<int32_t>* ids) const;  // appends
  std::string Decode(const std::vector<int32_t>& ids) const;             // unknown ids are left out

 private:
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
};

}  // namespace terrace
