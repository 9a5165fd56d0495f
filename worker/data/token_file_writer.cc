// SPDX-License-Identifier: Apache-2.0
#include "worker/data/token_file_writer.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

constexpr int64_t kChunkTokens = 1 << 16;

absl::Status WriteLlmcHeader(const UniqueFd& fd, TokenType type, int64_t tokens,
                             const std::string& path) {
  if (tokens > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " would have ", tokens,
                     " tokens, more than an llm.c header can say; write several files or "
                     "the raw format"));
  }
  const LlmcHeader& kind = type == TokenType::kU32 ? kLlmcU32 : kLlmcU16;
  std::array<int32_t, kLlmcHeaderBytes / sizeof(int32_t)> header = {kind.magic, kind.version,
                                                                    static_cast<int32_t>(tokens)};
  return WriteAll(fd, std::as_bytes(std::span(header)), path);
}

absl::Status WriteSegment(const UniqueFd& fd, TokenType type, const TokenSegment& segment,
                          const std::string& path) {
  std::vector<int32_t> ids;
  std::vector<uint16_t> narrow;
  for (int64_t begin = 0; begin < segment.count; begin += kChunkTokens) {
    ids.resize(std::min(kChunkTokens, segment.count - begin));
    segment.Read(begin, ids);
    if (type == TokenType::kU32) {
      RETURN_IF_ERROR(WriteAll(fd, std::as_bytes(std::span(ids)), path));
    } else {
      narrow.assign(ids.begin(), ids.end());
      RETURN_IF_ERROR(WriteAll(fd, std::as_bytes(std::span(narrow)), path));
    }
  }
  return absl::OkStatus();
}

absl::Status WriteAllSegments(const std::string& path, TokenFileFormat format, TokenType type,
                              const std::vector<const TokenSegment*>& segments) {
  ASSIGN_OR_RETURN(const UniqueFd fd, CreateFile(path));
  int64_t tokens = 0;
  for (const TokenSegment* segment : segments) tokens += segment->count;
  if (format == TokenFileFormat::kLlmc) RETURN_IF_ERROR(WriteLlmcHeader(fd, type, tokens, path));
  for (const TokenSegment* segment : segments) {
    RETURN_IF_ERROR(WriteSegment(fd, type, *segment, path));
  }
  return SyncFile(fd, path);
}

}  // namespace

absl::Status WriteTokenFile(const std::string& path, TokenFileFormat format, int64_t vocabulary,
                            const std::vector<const TokenSegment*>& segments) {
  const TokenType type = vocabulary > kLargestUint16Vocabulary ? TokenType::kU32 : TokenType::kU16;
  const std::string temporary = absl::StrCat(path, ".tmp");
  absl::Status status = WriteAllSegments(temporary, format, type, segments);
  if (status.ok()) status = Rename(temporary, path);
  if (!status.ok()) {
    RemoveAll(temporary).IgnoreError();  // the first failure is the one to report
    return status;
  }
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return SyncDirectory(folder.empty() ? "." : folder);
}

}  // namespace terrace
