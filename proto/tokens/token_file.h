// Files of tokens as their first bytes and their sizes describe them: nanoGPT's raw .bin, llm.c's
// .bin with a 1024-byte header, Megatron's .bin beside an .idx (docs/formats.md lists the bytes).
// Ranks that map a file and the coordinator, which looks at it before it plans, read it here.
//
// Nothing is opened but to see whether an .idx is there. `path` is for messages. Thread-safe: no
// state. Errors are INVALID_ARGUMENT that name the file, what it has and what it must have.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace {

enum class TokenType : uint32_t { kU8 = 1, kU16 = 2, kU32 = 4 };  // the value is the size in bytes

// Vocabularies up to this have uint16 token files, larger ones uint32.
inline constexpr int64_t kLargestUint16Vocabulary = 65536;

// llm.c: 256 int32 {magic, version, tokens, 0, ...}, then the tokens.
struct LlmcHeader {
  int32_t magic;
  int32_t version;
};
inline constexpr int64_t kLlmcHeaderBytes = 1024;
inline constexpr LlmcHeader kLlmcU16 = {20240520, 1};  // GPT-2
inline constexpr LlmcHeader kLlmcU32 = {20240801, 7};  // Llama 3

// Megatron's .idx: magic, uint64 version, one byte of type, uint64 sequences, uint64 documents.
inline constexpr int64_t kMegatronHeaderBytes = 9 + 8 + 1 + 8 + 8;

// As much of a file's beginning as the functions below look at; files may be shorter.
inline constexpr int64_t kTokenFileHeadBytes = 16 * 1024;

// The narrowest type that holds every id below `vocabulary`.
TokenType NarrowestType(int64_t vocabulary);

// A number at any address, aligned or not.
template <typename T>
T LoadNumber(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

enum class DataFileKind { kText, kJsonLines, kTokens };
// By the extension of what data.train and data.validation name; of a compressed text by that of the
// text: "x.jsonl.gz".
absl::StatusOr<DataFileKind> DataFileKindOf(std::string_view path);

// The .bin that a .bin or .idx path means, and the .idx if one belongs to it, else "".
struct TokenFilePaths {
  std::string tokens;
  std::string index;
};
TokenFilePaths TokenFilePathsOf(std::string_view path);

// Where tokens lie in a .bin.
struct TokenRun {
  TokenType type = TokenType::kU16;
  bool type_by_vocabulary = false;  // the file does not name it
  int64_t offset = 0;               // bytes
  int64_t count = 0;
};

// A .bin without an .idx. `head` is its beginning, `bytes` its size; `vocabulary` decides the type
// of a raw one: uint16 up to 65536, uint32 beyond.
absl::StatusOr<TokenRun> ReadTokenFile(std::string_view path, std::span<const std::byte> head,
                                       int64_t bytes, int64_t vocabulary);

struct MegatronIndex {
  TokenType type = TokenType::kU16;
  int64_t sequences = 0;
  int64_t documents = 0;
};
// The header of an .idx of `bytes`, which has room for what the header announces.
absl::StatusOr<MegatronIndex> ReadMegatronIndex(std::string_view path,
                                                std::span<const std::byte> head, int64_t bytes);

// Position of the first of `count` ids at `data` that is not below `vocabulary`.
std::optional<int64_t> FindBeyond(TokenType type, const std::byte* data, int64_t count,
                                  int64_t vocabulary);
// What FindBeyond() found, with the way out.
absl::Status BeyondVocabulary(std::string_view path, bool uint32_by_vocabulary, uint32_t id,
                              int64_t position, int64_t vocabulary);

}  // namespace terrace
