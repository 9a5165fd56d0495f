// SPDX-License-Identifier: Apache-2.0
#include "worker/data/token_segment.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace terrace {
namespace {

template <typename T>
void Widen(const std::byte* from, std::span<int32_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<int32_t>(LoadNumber<T>(from + i * sizeof(T)));
  }
}

// Where Megatron's index says that documents end: each as the number of the sequence after it.
absl::Status ReadMegatronDocuments(std::shared_ptr<const MappedFile> index, int64_t sequences,
                                   int64_t documents, TokenSegment* segment) {
  const std::byte* positions = index->bytes().data() + kMegatronHeaderBytes + sequences * 4;
  const std::byte* starts = positions + sequences * 8;
  int64_t before = 0;
  for (int64_t i = 0; i < documents; ++i) {
    const int64_t start = LoadNumber<int64_t>(starts + i * 8);
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
    const int64_t next = LoadNumber<int64_t>(starts + (i + 1) * 8);
    return next == sequences ? count : LoadNumber<int64_t>(positions + next * 8) / token_bytes;
  };
  return absl::OkStatus();
}

// The .idx tells the type and where each sequence lies in the .bin.
absl::Status ReadMegatron(const std::string& index_path, TokenSegment* segment) {
  ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(index_path));
  const auto index = std::make_shared<const MappedFile>(std::move(mapped));
  const std::span<const std::byte> bytes = index->bytes();
  ASSIGN_OR_RETURN(const MegatronIndex header, ReadMegatronIndex(index_path, bytes, bytes.size()));
  segment->type = header.type;
  const std::byte* lengths = bytes.data() + kMegatronHeaderBytes;
  const std::byte* positions = lengths + header.sequences * 4;
  const int64_t token_bytes = static_cast<int64_t>(segment->type);
  int64_t position = 0;
  for (int64_t i = 0; i < header.sequences; ++i) {
    const int32_t length = LoadNumber<int32_t>(lengths + i * 4);
    if (length < 0 || LoadNumber<int64_t>(positions + i * 8) != position) {
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
  return ReadMegatronDocuments(index, header.sequences, header.documents, segment);
}

// Calls `visit(first, last)` for each run of uncounted tokens among [begin, begin + count), counted
// from `begin`.
template <typename Visit>
void ForEachUncounted(const TokenSegment& segment, int64_t begin, int64_t count,
                      const Visit& visit) {
  const auto first = static_cast<uint64_t>(begin), last = first + static_cast<uint64_t>(count);
  auto span = std::partition_point(segment.uncounted.begin(), segment.uncounted.end(),
                                   [&](const TokenSpan& one) { return one.end <= first; });
  for (; span != segment.uncounted.end() && span->begin < last; ++span) {
    visit(static_cast<int64_t>(std::max(span->begin, first) - first),
          static_cast<int64_t>(std::min(span->end, last) - first));
  }
}

}  // namespace

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

void TokenSegment::Mask(int64_t begin, int32_t id, std::span<int32_t> out) const {
  ForEachUncounted(
      *this, begin, static_cast<int64_t>(out.size()),
      [&](int64_t first, int64_t last) { std::fill(out.begin() + first, out.begin() + last, id); });
}

uint32_t TokenSegment::At(int64_t position) const {
  int32_t id = 0;
  Read(position, std::span(&id, 1));
  return static_cast<uint32_t>(id);
}

absl::Status CheckIds(const TokenSegment& segment, int64_t vocabulary) {
  const std::optional<int64_t> position =
      FindBeyond(segment.type, segment.data, segment.count, vocabulary);
  if (!position.has_value()) return absl::OkStatus();
  return BeyondVocabulary(segment.path,
                          segment.type_by_vocabulary && segment.type == TokenType::kU32,
                          segment.At(*position), *position, vocabulary);
}

absl::StatusOr<TokenSegment> OpenTokenFile(std::string_view path, int64_t vocabulary) {
  const TokenFilePaths paths = TokenFilePathsOf(path);
  TokenSegment segment;
  segment.path = paths.tokens;
  ASSIGN_OR_RETURN(segment.file, MappedFile::Open(segment.path));
  if (!paths.index.empty()) {
    RETURN_IF_ERROR(ReadMegatron(paths.index, &segment));
    return segment;
  }
  const std::span<const std::byte> bytes = segment.file.bytes();
  ASSIGN_OR_RETURN(const TokenRun run,
                   ReadTokenFile(segment.path, bytes, bytes.size(), vocabulary));
  segment.type = run.type;
  segment.type_by_vocabulary = run.type_by_vocabulary;
  segment.data = bytes.data() + run.offset;
  segment.count = run.count;
  return segment;
}

void TokenSequence::Append(TokenSegment segment) {
  begins_.push_back(size_);
  size_ += segment.count;
  segments_.push_back(std::move(segment));
}

template <typename Visit>
void TokenSequence::ForEachPart(int64_t begin, int64_t count, const Visit& visit) const {
  size_t i = std::upper_bound(begins_.begin(), begins_.end(), begin) - begins_.begin() - 1;
  while (count > 0) {
    const int64_t offset = begin - begins_[i];
    const int64_t here = std::min(count, segments_[i].count - offset);
    visit(segments_[i], offset, here);
    count -= here;
    begin += here;
    ++i;
  }
}

void TokenSequence::Read(int64_t begin, std::span<int32_t> out) const {
  ForEachPart(begin, static_cast<int64_t>(out.size()),
              [&](const TokenSegment& segment, int64_t offset, int64_t count) {
                segment.Read(offset, out.first(count));
                out = out.subspan(count);
              });
}

void TokenSequence::ReadCounted(int64_t begin, int32_t uncounted, std::span<int32_t> out) const {
  ForEachPart(begin, static_cast<int64_t>(out.size()),
              [&](const TokenSegment& segment, int64_t offset, int64_t count) {
                segment.Read(offset, out.first(count));
                segment.Mask(offset, uncounted, out.first(count));
                out = out.subspan(count);
              });
}

bool TokenSequence::CountsAny(int64_t begin, int64_t count) const {
  int64_t counted = 0;
  ForEachPart(begin, count, [&](const TokenSegment& segment, int64_t offset, int64_t tokens) {
    counted += tokens;
    ForEachUncounted(segment, offset, tokens,
                     [&](int64_t first, int64_t last) { counted -= last - first; });
  });
  return counted > 0;
}

}  // namespace terrace
