// The functions of terrace-sentencepiece.so, a module that holds Debian's libsentencepiece and is loaded alone.
//
// That library carries an old protobuf and exports all of it; in one symbol space with ours, the process dies before main.
// So nothing links to it but the module, and only C crosses the border: no C++ type, no allocation that the other side frees.
//
// Thread-safe on a model that was parsed.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace terrace {

struct SentencePieceModule {
  // Null when `bytes` is no model; then `report` is called with the reason.
  void* (*parse)(const char* bytes, size_t size, void (*report)(void* out, const char* text), void* out);
  void (*destroy)(void* model);
  int32_t (*pieces)(const void* model);
  int32_t (*end_of_sentence)(const void* model);
  void (*encode)(const void* model, const char* text, size_t size, void (*append)(void* out, int32_t id), void* out);
  void (*decode)(const void* model, const int32_t* ids, size_t count,
                 void (*append)(void* out, const char* text, size_t size), void* out);
};

inline constexpr char kSentencePieceModuleFile[] = "terrace-sentencepiece.so";
inline constexpr char kSentencePieceModuleSymbol[] = "terrace_sentencepiece";  // a SentencePieceModule

}  // namespace terrace
