// SPDX-License-Identifier: Apache-2.0
#include "proto/tokens/token_file.h"

#include <algorithm>
#include <filesystem>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/paths/compression.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace terrace {
namespace {

constexpr std::string_view kMegatronMagic("MMIDIDX\0\0", 9);

bool IsLlmc(std::span<const std::byte> head) {
  if (head.size() < kLlmcHeaderBytes) return false;
  const int32_t magic = LoadNumber<int32_t>(head.data());
  return magic == kLlmcU16.magic || magic == kLlmcU32.magic;
}

absl::StatusOr<TokenRun> ReadLlmcHeader(std::string_view path, std::span<const std::byte> head,
                                        int64_t bytes) {
  const bool narrow = LoadNumber<int32_t>(head.data()) == kLlmcU16.magic;
  const int32_t version = LoadNumber<int32_t>(head.data() + 4);
  const int32_t wanted_version = narrow ? kLlmcU16.version : kLlmcU32.version;
  if (version != wanted_version) {
    return absl::InvalidArgumentError(absl::StrCat(Absl(path), " has an llm.c header of version ",
                                                   version, ", must be ", wanted_version));
  }
  const TokenRun run = {.type = narrow ? TokenType::kU16 : TokenType::kU32,
                        .offset = kLlmcHeaderBytes,
                        .count = LoadNumber<int32_t>(head.data() + 8)};
  const int64_t wanted = kLlmcHeaderBytes + run.count * static_cast<int64_t>(run.type);
  if (run.count < 0 || wanted != bytes) {
    return absl::InvalidArgumentError(absl::StrCat(Absl(path), " announces ", run.count,
                                                   " tokens (", wanted, " bytes) but has ", bytes,
                                                   " bytes; was it cut off?"));
  }
  return run;
}

// A file of uint32 whose ids are small, read as uint16.
bool LooksWide(std::span<const std::byte> head) {
  constexpr int64_t kLeast = 64;  // ids
  const auto looked = static_cast<int64_t>(std::min<size_t>(head.size(), kTokenFileHeadBytes) /
                                           sizeof(uint32_t) * 2);
  bool any = false;
  for (int64_t i = 0; i < looked; i += 2) {
    if (LoadNumber<uint16_t>(head.data() + (i + 1) * sizeof(uint16_t)) != 0) return false;
    any = any || LoadNumber<uint16_t>(head.data() + i * sizeof(uint16_t)) != 0;
  }
  return any && looked >= kLeast;
}

absl::StatusOr<TokenRun> ReadRaw(std::string_view path, std::span<const std::byte> head,
                                 int64_t bytes, int64_t vocabulary) {
  const TokenType type = vocabulary > kLargestUint16Vocabulary ? TokenType::kU32 : TokenType::kU16;
  const auto token_bytes = static_cast<int64_t>(type);
  if (bytes % token_bytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        Absl(path), " has ", bytes, " bytes, not a multiple of ", token_bytes, " (uint",
        token_bytes * 8, " tokens, as a vocabulary of ", vocabulary, " asks for)"));
  }
  if (type == TokenType::kU16 && LooksWide(head)) {
    return absl::InvalidArgumentError(absl::StrCat(
        Absl(path), " is read as uint16, as a vocabulary of ", vocabulary,
        " asks for, but every second id of it is 0, as in a file of uint32; write it as uint16, "
        "or with a header that names its type (llm.c's, or Megatron's .idx)"));
  }
  return TokenRun{.type = type, .type_by_vocabulary = true, .count = bytes / token_bytes};
}

absl::StatusOr<TokenType> MegatronType(uint8_t code, std::string_view path) {
  switch (code) {
    case 1:
      return TokenType::kU8;
    case 4:
      return TokenType::kU32;  // int32; a negative id is beyond every vocabulary
    case 8:
      return TokenType::kU16;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat(Absl(path), " has token type code ", code,
                       ", must be 1 (uint8), 4 (int32) or 8 (uint16)"));
  }
}

template <typename T>
std::optional<int64_t> FindBeyondAs(const std::byte* data, int64_t count, int64_t vocabulary) {
  if (vocabulary > int64_t{std::numeric_limits<T>::max()}) return std::nullopt;
  constexpr int64_t kBlock = 4096;  // first whether a block has one, which vectorises; then where
  const T limit = static_cast<T>(vocabulary);
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, count);
    T largest = 0;
    for (int64_t i = begin; i < end; ++i) {
      largest = std::max(largest, LoadNumber<T>(data + i * sizeof(T)));
    }
    if (largest < limit) continue;
    for (int64_t i = begin; i < end; ++i) {
      if (LoadNumber<T>(data + i * sizeof(T)) >= limit) return i;
    }
  }
  return std::nullopt;
}

}  // namespace

TokenType NarrowestType(int64_t vocabulary) {
  if (vocabulary <= 256) return TokenType::kU8;
  return vocabulary <= kLargestUint16Vocabulary ? TokenType::kU16 : TokenType::kU32;
}

absl::StatusOr<DataFileKind> DataFileKindOf(std::string_view path) {
  const bool is_compressed = CompressionOf(path) != Compression::kNone;
  const std::string extension =
      std::filesystem::path(WithoutCompression(path)).extension().string();
  if (extension == ".txt") return DataFileKind::kText;
  if (extension == ".jsonl") return DataFileKind::kJsonLines;
  const bool is_tokens = extension == ".bin" || extension == ".idx";
  if (is_tokens && !is_compressed) return DataFileKind::kTokens;
  if (is_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat(Absl(path),
                     " is of tokens, which are read in place; decompress it (.txt and .jsonl may "
                     "be compressed)"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      Absl(path), " has the extension \"", std::filesystem::path(path).extension().string(),
      "\", must be .txt or .jsonl, compressed perhaps (.gz, .zst), .bin or .idx"));
}

TokenFilePaths TokenFilePathsOf(std::string_view path) {
  const std::filesystem::path given(path);
  TokenFilePaths paths = {.tokens = std::filesystem::path(given).replace_extension(".bin").string(),
                          .index = std::filesystem::path(given).replace_extension(".idx").string()};
  std::error_code ignored;
  const bool indexed = given.extension() == ".idx" || std::filesystem::exists(paths.index, ignored);
  if (!indexed) paths.index.clear();
  return paths;
}

absl::StatusOr<TokenRun> ReadTokenFile(std::string_view path, std::span<const std::byte> head,
                                       int64_t bytes, int64_t vocabulary) {
  return IsLlmc(head) ? ReadLlmcHeader(path, head, bytes) : ReadRaw(path, head, bytes, vocabulary);
}

absl::StatusOr<MegatronIndex> ReadMegatronIndex(std::string_view path,
                                                std::span<const std::byte> head, int64_t bytes) {
  const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  if (static_cast<int64_t>(head.size()) < kMegatronHeaderBytes ||
      !absl::StartsWith(Absl(text), Absl(kMegatronMagic))) {
    return absl::InvalidArgumentError(
        absl::StrCat(Absl(path), " does not start like a Megatron index (MMIDIDX)"));
  }
  const uint64_t version = LoadNumber<uint64_t>(head.data() + 9);
  if (version != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(Absl(path), " has version ", version, ", must be 1"));
  }
  ASSIGN_OR_RETURN(const TokenType type, MegatronType(LoadNumber<uint8_t>(head.data() + 17), path));
  const uint64_t sequences = LoadNumber<uint64_t>(head.data() + 18);
  const uint64_t documents = LoadNumber<uint64_t>(head.data() + 26);
  // Per sequence: int32 length, int64 position; per document: int64.
  const uint64_t room = bytes - kMegatronHeaderBytes;
  if (sequences > room / 12 || documents > (room - sequences * 12) / 8) {
    return absl::InvalidArgumentError(absl::StrCat(Absl(path), " announces ", sequences,
                                                   " sequences and ", documents,
                                                   " documents but has only ", bytes, " bytes"));
  }
  return MegatronIndex{.type = type,
                       .sequences = static_cast<int64_t>(sequences),
                       .documents = static_cast<int64_t>(documents)};
}

std::optional<int64_t> FindBeyond(TokenType type, const std::byte* data, int64_t count,
                                  int64_t vocabulary) {
  switch (type) {
    case TokenType::kU8:
      return FindBeyondAs<uint8_t>(data, count, vocabulary);
    case TokenType::kU16:
      return FindBeyondAs<uint16_t>(data, count, vocabulary);
    case TokenType::kU32:
      return FindBeyondAs<uint32_t>(data, count, vocabulary);
  }
  return std::nullopt;
}

absl::Status BeyondVocabulary(std::string_view path, bool uint32_by_vocabulary, uint32_t id,
                              int64_t position, int64_t vocabulary) {
  return absl::InvalidArgumentError(absl::StrCat(
      Absl(path), " has token id ", id, " at position ", position,
      ", but the model's vocabulary is ", vocabulary, " (ids 0 to ", vocabulary - 1,
      "); use data made with the model's tokenizer, or raise vocab_size in the model's config",
      uint32_by_vocabulary
          ? "; the file is read as uint32, as vocabularies above 65536 ask for: one of uint16 has "
            "such ids, write it as uint32"
          : ""));
}

}  // namespace terrace
