// SPDX-License-Identifier: Apache-2.0
#include "worker/data/token_segment.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace terrace {
namespace {

template <typename T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

template <typename T>
void Widen(const std::byte* from, std::span<int32_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<int32_t>(Load<T>(from + i * sizeof(T)));
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
      largest = std::max(largest, Load<T>(data + i * sizeof(T)));
    }
    if (largest < limit) continue;
    for (int64_t i = begin; i < end; ++i) {
      if (Load<T>(data + i * sizeof(T)) >= limit) return i;
    }
  }
  return std::nullopt;
}

// ---- llm.c: a header, then the tokens
// ----------------------------------------------------------------------------------

bool IsLlmc(std::span<const std::byte> bytes) {
  if (bytes.size() < kLlmcHeaderBytes) return false;
  const int32_t magic = Load<int32_t>(bytes.data());
  return magic == kLlmcU16.magic || magic == kLlmcU32.magic;
}

absl::Status ReadLlmcHeader(TokenSegment* segment) {
  const std::span<const std::byte> bytes = segment->file.bytes();
  const bool narrow = Load<int32_t>(bytes.data()) == kLlmcU16.magic;
  const int32_t version = Load<int32_t>(bytes.data() + 4);
  const int32_t wanted_version = narrow ? kLlmcU16.version : kLlmcU32.version;
  if (version != wanted_version) {
    return absl::InvalidArgumentError(absl::StrCat(
        segment->path, " has an llm.c header of version ", version, ", must be ", wanted_version));
  }
  segment->type = narrow ? TokenType::kU16 : TokenType::kU32;
  segment->data = bytes.data() + kLlmcHeaderBytes;
  segment->count = Load<int32_t>(bytes.data() + 8);
  const int64_t wanted = kLlmcHeaderBytes + segment->count * static_cast<int64_t>(segment->type);
  if (segment->count < 0 || wanted != static_cast<int64_t>(bytes.size())) {
    return absl::InvalidArgumentError(absl::StrCat(segment->path, " announces ", segment->count,
                                                   " tokens (", wanted, " bytes) but has ",
                                                   bytes.size(), " bytes; was it cut off?"));
  }
  return absl::OkStatus();
}

// ---- Megatron: the .idx tells the type and where each sequence lies in the .bin
// ---------------------------------------

constexpr std::string_view kMegatronMagic("MMIDIDX\0\0", 9);
constexpr size_t kMegatronHeaderBytes = 9 + 8 + 1 + 8 + 8;

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

// Where Megatron's index says that documents end: each as the number of the sequence after it.
absl::Status ReadMegatronDocuments(std::shared_ptr<const MappedFile> index, int64_t sequences,
                                   int64_t documents, TokenSegment* segment) {
  const std::byte* positions = index->bytes().data() + kMegatronHeaderBytes + sequences * 4;
  const std::byte* starts = positions + sequences * 8;
  int64_t before = 0;
  for (int64_t i = 0; i < documents; ++i) {
    const int64_t start = Load<int64_t>(starts + i * 8);
    if (start < before || start > sequences || (i == 0 && start != 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat(segment->path, "'s index: document ", i, " begins at sequence ", start,
                       ", must be from ", before, " to ", i == 0 ? 0 : sequences,
                       "; write the data set again with Megatron's preprocess_data.py"));
    }
    before = start;
  }
  // The last entry is the end of the last document, which is that of the data.
  segment->documents = std::max<int64_t>(0, documents - 1);
  if (sequences > 0 && (documents < 2 || before != sequences)) {
    return absl::OkStatus();  // written without documents: the tokens may tell
  }
  segment->document_end = [index = std::move(index), positions, starts, sequences,
                           count = segment->count,
                           token_bytes = static_cast<int64_t>(segment->type)](int64_t i) {
    const int64_t next = Load<int64_t>(starts + (i + 1) * 8);
    return next == sequences ? count : Load<int64_t>(positions + next * 8) / token_bytes;
  };
  return absl::OkStatus();
}

absl::Status ReadMegatronIndex(const std::string& index_path, TokenSegment* segment) {
  ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(index_path));
  const auto index = std::make_shared<const MappedFile>(std::move(mapped));
  const std::span<const std::byte> bytes = index->bytes();
  if (bytes.size() < kMegatronHeaderBytes ||
      !absl::StartsWith(Absl(index->text()), Absl(kMegatronMagic))) {
    return absl::InvalidArgumentError(
        absl::StrCat(index_path, " does not start like a Megatron index (MMIDIDX)"));
  }
  const uint64_t version = Load<uint64_t>(bytes.data() + 9);
  if (version != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(index_path, " has version ", version, ", must be 1"));
  }
  ASSIGN_OR_RETURN(segment->type, MegatronType(Load<uint8_t>(bytes.data() + 17), index_path));
  const uint64_t sequences = Load<uint64_t>(bytes.data() + 18);
  const uint64_t documents = Load<uint64_t>(bytes.data() + 26);
  // Per sequence: int32 length, int64 position; per document: int64.
  const uint64_t room = bytes.size() - kMegatronHeaderBytes;
  if (sequences > room / 12 || documents > (room - sequences * 12) / 8) {
    return absl::InvalidArgumentError(
        absl::StrCat(index_path, " announces ", sequences, " sequences and ", documents,
                     " documents but has only ", bytes.size(), " bytes"));
  }
  const std::byte* lengths = bytes.data() + kMegatronHeaderBytes;
  const std::byte* positions = lengths + sequences * 4;
  const int64_t token_bytes = static_cast<int64_t>(segment->type);
  int64_t position = 0;
  for (uint64_t i = 0; i < sequences; ++i) {
    const int32_t length = Load<int32_t>(lengths + i * 4);
    if (length < 0 || Load<int64_t>(positions + i * 8) != position) {
      return absl::InvalidArgumentError(
          absl::StrCat(index_path, ": sequence ", i,
                       " does not follow the one before it in the .bin; write the data set "
                       "again with Megatron's preprocess_data.py"));
    }
    position += length * token_bytes;
  }
  if (position != static_cast<int64_t>(segment->file.bytes().size())) {
    return absl::InvalidArgumentError(absl::StrCat(index_path, " describes ", position,
                                                   " bytes, but ", segment->path, " has ",
                                                   segment->file.bytes().size()));
  }
  segment->data = segment->file.bytes().data();
  segment->count = position / token_bytes;
  return ReadMegatronDocuments(index, static_cast<int64_t>(sequences),
                               static_cast<int64_t>(documents), segment);
}

// ---- nanoGPT: nothing but tokens
// --------------------------------------------------------------------------------------

// A file of uint32 whose ids are small, read as uint16.
bool LooksWide(const TokenSegment& segment) {
  constexpr int64_t kLeast = 64, kMost = 8192;  // ids
  const int64_t looked = std::min(segment.count, kMost) / 2 * 2;
  bool any = false;
  for (int64_t i = 0; i < looked; i += 2) {
    if (segment.At(i + 1) != 0) return false;
    any = any || segment.At(i) != 0;
  }
  return any && looked >= kLeast;
}

absl::Status ReadRaw(int64_t vocabulary, TokenSegment* segment) {
  segment->type = vocabulary > kLargestUint16Vocabulary ? TokenType::kU32 : TokenType::kU16;
  const int64_t bytes = segment->file.bytes().size();
  const int64_t token_bytes = static_cast<int64_t>(segment->type);
  if (bytes % token_bytes != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        segment->path, " has ", bytes, " bytes, not a multiple of ", token_bytes, " (uint",
        token_bytes * 8, " tokens, as a vocabulary of ", vocabulary, " asks for)"));
  }
  segment->data = segment->file.bytes().data();
  segment->count = bytes / token_bytes;
  segment->type_by_vocabulary = true;
  if (segment->type != TokenType::kU16 || !LooksWide(*segment)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      segment->path, " is read as uint16, as a vocabulary of ", vocabulary,
      " asks for, but every second id of it is 0, as in a file of uint32; write it as uint16, or "
      "with a header that names its type (llm.c's, or Megatron's .idx)"));
}

}  // namespace

TokenType NarrowestType(int64_t vocabulary) {
  if (vocabulary <= 256) return TokenType::kU8;
  return vocabulary <= kLargestUint16Vocabulary ? TokenType::kU16 : TokenType::kU32;
}

void TokenSegment::Read(int64_t begin, std::span<int32_t> out) const {
  const std::byte* from = data + begin * static_cast<int64_t>(type);
  switch (type) {
    case TokenType::kU8:
      return Widen<uint8_t>(from, out);
    case TokenType::kU16:
      return Widen<uint16_t>(from, out);
    case TokenType::kU32:
      return Widen<uint32_t>(from, out);
  }
}

std::optional<int64_t> TokenSegment::FindBeyond(int64_t vocabulary) const {
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

uint32_t TokenSegment::At(int64_t position) const {
  int32_t id = 0;
  Read(position, std::span(&id, 1));
  return static_cast<uint32_t>(id);
}

absl::Status CheckIds(const TokenSegment& segment, int64_t vocabulary) {
  const std::optional<int64_t> position = segment.FindBeyond(vocabulary);
  if (!position.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      segment.path, " has token id ", segment.At(*position), " at position ", *position,
      ", but the model's vocabulary is ", vocabulary, " (ids 0 to ", vocabulary - 1,
      "); use data made with the model's tokenizer, or raise vocab_size in the model's config",
      segment.type_by_vocabulary && segment.type == TokenType::kU32
          ? "; the file is read as uint32, as vocabularies above 65536 ask for: one of uint16 has "
            "such ids, write it as uint32"
          : ""));
}

absl::StatusOr<TokenSegment> OpenTokenFile(std::string_view path, int64_t vocabulary) {
  TokenSegment segment;
  const std::filesystem::path given(path);
  const std::string index_path = std::filesystem::path(given).replace_extension(".idx").string();
  segment.path = std::filesystem::path(given).replace_extension(".bin").string();
  ASSIGN_OR_RETURN(segment.file, MappedFile::Open(segment.path));
  std::error_code ignored;
  if (given.extension() == ".idx" || std::filesystem::exists(index_path, ignored)) {
    RETURN_IF_ERROR(ReadMegatronIndex(index_path, &segment));
  } else if (IsLlmc(segment.file.bytes())) {
    RETURN_IF_ERROR(ReadLlmcHeader(&segment));
  } else {
    RETURN_IF_ERROR(ReadRaw(vocabulary, &segment));
  }
  return segment;
}

void TokenSequence::Append(TokenSegment segment) {
  begins_.push_back(size_);
  size_ += segment.count;
  segments_.push_back(std::move(segment));
}

void TokenSequence::Read(int64_t begin, std::span<int32_t> out) const {
  size_t i = std::upper_bound(begins_.begin(), begins_.end(), begin) - begins_.begin() - 1;
  while (!out.empty()) {
    const int64_t offset = begin - begins_[i];
    const size_t here = std::min<size_t>(out.size(), segments_[i].count - offset);
    segments_[i].Read(offset, out.first(here));
    out = out.subspan(here);
    begin += here;
    ++i;
  }
}

}  // namespace terrace
