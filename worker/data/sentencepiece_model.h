// A SentencePiece model, by way of the module that holds the library (sentencepiece_module.h).
//
// Thread-safe after Parse.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace terrace {

struct SentencePieceModule;

class SentencePieceModel {
 public:
  SentencePieceModel() = default;
  ~SentencePieceModel();
  SentencePieceModel(const SentencePieceModel&) = delete;
  SentencePieceModel& operator=(const SentencePieceModel&) = delete;
  // The content of a *.model file. False, with the library's words in `error`, when it is none, or when the module is not
  // installed beside the program.
  bool Parse(std::string_view serialized, std::string* error);

  int32_t pieces() const;
  int32_t end_of_sentence() const;  // negative: the model has none
  void Encode(std::string_view text, std::vector<int32_t>* ids) const;  // appends
  std::string Decode(const std::vector<int32_t>& ids) const;             // unknown ids are left out

 private:
  const SentencePieceModule* module_ = nullptr;  // never unloaded
  void* model_ = nullptr;
};

}  // namespace terrace
