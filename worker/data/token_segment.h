// Consecutive tokens of one memory-mapped file, and several of them read as one sequence.
//
// Opens what is tokens already: nanoGPT's raw .bin, llm.c's .bin with a 1024-byte header,
// Megatron's .bin/.idx (docs/formats.md lists the bytes). Owns the mappings. Thread-safe after
// construction.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file.h"
#include "proto/tokens/token_file.h"

namespace terrace {

struct TokenSpan {
  uint64_t begin = 0, end = 0;
};

struct TokenSegment {
  std::string path;  // for messages
  MappedFile file;
  TokenType type = TokenType::kU16;
  bool type_by_vocabulary = false;  // the file does not name it
  const std::byte* data = nullptr;  // inside `file`; aligned to the type or not
  int64_t count = 0;
  int64_t documents = 0;
  // Where a document ends, ascending up to `count`; null: the file does not say.
  std::function<int64_t(int64_t document)> document_end;

  // Tokens that the loss does not count: prompts. Ascending, apart from each other; inside `file`.
  std::span<const TokenSpan> uncounted = {};

  // `begin + out.size()` <= count.
  void Read(int64_t begin, std::span<int32_t> out) const;
  uint32_t At(int64_t position) const;
  // `id` in place of tokens that are not counted, in what was read from `begin` on.
  void Mask(int64_t begin, int32_t id, std::span<int32_t> out) const;
};

// INVALID_ARGUMENT that names the file, the position, the id, the vocabulary and the way out.
absl::Status CheckIds(const TokenSegment& segment, int64_t vocabulary);

// A .bin or .idx path. `vocabulary` decides the width of a raw .bin: uint16 up to 65536, uint32
// beyond.
absl::StatusOr<TokenSegment> OpenTokenFile(std::string_view path, int64_t vocabulary);

// Segments, one after the other.
class TokenSequence {
 public:
  void Append(TokenSegment segment);
  int64_t size() const { return size_; }
  const std::vector<TokenSegment>& segments() const { return segments_; }
  // `begin + out.size()` <= size(). No allocation.
  void Read(int64_t begin, std::span<int32_t> out) const;
  // The same with `uncounted` in place of tokens that the loss does not count.
  void ReadCounted(int64_t begin, int32_t uncounted, std::span<int32_t> out) const;
  // Whether the loss counts any of them.
  bool CountsAny(int64_t begin, int64_t count) const;

 private:
  // Calls `visit(segment, offset, tokens of it)` for each that has some of [begin, begin + count).
  template <typename Visit>
  void ForEachPart(int64_t begin, int64_t count, const Visit& visit) const;

  std::vector<TokenSegment> segments_;
  std::vector<int64_t> begins_;
  int64_t size_ = 0;
};

}  // namespace terrace
