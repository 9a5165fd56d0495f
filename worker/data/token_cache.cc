// SPDX-License-Identifier: Apache-2.0
#include "worker/data/token_cache.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/paths/same_access.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "worker/data/chat/chat_renderer.h"
#include "worker/data/counted_tokens.h"

namespace terrace {
namespace {

constexpr char kMagic[8] = {'T', 'R', 'R', 'C', 'T', 'O', 'K', '\n'};
constexpr uint32_t kVersion = 4;
constexpr int64_t kLockAttemptMs = 200;

// Little-endian, as the machines we run on. The checksum covers all before it.
struct Header {
  char magic[8];
  uint32_t version;
  uint32_t token_bytes;
  uint64_t tokens;
  uint64_t documents;
  uint64_t source_bytes;
  int64_t source_modified_unix_ns;
  uint64_t key;
  uint32_t max_id;
  uint32_t spans;  // of tokens that the loss does not count
  uint64_t checksum;
};
static_assert(sizeof(Header) == 72);

// After the tokens, from the next multiple of 8 on: the position of each document's end, then the
// spans.
constexpr uint64_t kEndBytes = sizeof(uint64_t);
static_assert(sizeof(TokenSpan) == 2 * kEndBytes);

uint64_t EndsOffset(const Header& header) {
  const uint64_t tokens_end = sizeof(Header) + header.tokens * header.token_bytes;
  return (tokens_end + kEndBytes - 1) / kEndBytes * kEndBytes;
}

uint64_t HeaderChecksum(const Header& header) {
  return XXH3_64bits(&header, offsetof(Header, checksum));
}

// What a cache belongs to; one name for all versions of a text, so that a stale cache is replaced,
// not left behind.
struct CacheName {
  uint64_t key = 0;
  std::string path;
};

const char* NameOf(TextFormat format) {
  if (format == TextFormat::kText) return "text";
  return format == TextFormat::kJsonLines ? "jsonl" : "pairs";
}

CacheName NameOf(const TokenCacheRequest& request) {
  std::error_code ignored;
  std::filesystem::path source = std::filesystem::weakly_canonical(request.source, ignored);
  if (source.empty()) source = request.source;
  std::string identity = absl::StrCat(request.tokenizer->fingerprint(), "\n", source.string(), "\n",
                                      NameOf(request.format));
  if (request.format != TextFormat::kText) {
    absl::StrAppend(&identity, "\n", request.answers_alone ? "answers" : "all", "\n",
                    request.chats == nullptr ? "" : request.chats->fingerprint());
  }
  CacheName name;
  name.key = XXH3_64bits(identity.data(), identity.size());
  name.path = (std::filesystem::path(request.folder) /
               absl::StrFormat("%s-%016x.tokens", source.stem().string(), name.key))
                  .string();
  return name;
}

// Memory is written by them: a cache that somebody changed is made anew.
bool AreInOrder(std::span<const TokenSpan> spans, uint64_t tokens) {
  uint64_t end = 0;
  for (const TokenSpan& span : spans) {
    if (span.begin < end || span.end <= span.begin || span.end > tokens) return false;
    end = span.end;
  }
  return true;
}

std::optional<CachedTokens> TryOpen(const TokenCacheRequest& request, const CacheName& name,
                                    const MappedFile& source) {
  LimitAccessTo(request.source, name.path);
  absl::StatusOr<MappedFile> file = MappedFile::Open(name.path);
  if (!file.ok() || file->bytes().size() < sizeof(Header)) return std::nullopt;
  Header header;
  std::memcpy(&header, file->bytes().data(), sizeof(header));
  const bool ours = std::memcmp(header.magic, kMagic, sizeof(kMagic)) == 0 &&
                    header.version == kVersion && header.checksum == HeaderChecksum(header) &&
                    header.key == name.key;
  const uint64_t ends_end = ours ? EndsOffset(header) + header.documents * kEndBytes : 0;
  const bool whole = ours && file->bytes().size() == ends_end + header.spans * sizeof(TokenSpan);
  const bool fresh = header.source_bytes == source.bytes().size() &&
                     header.source_modified_unix_ns == source.modified_unix_ns();
  if (!whole || !fresh) return std::nullopt;
  // Aligned: the mapping begins on a page.
  const std::span<const TokenSpan> uncounted = {
      reinterpret_cast<const TokenSpan*>(file->bytes().data() + ends_end), header.spans};
  if (!AreInOrder(uncounted, header.tokens)) return std::nullopt;
  CachedTokens cached;
  cached.segment.path = request.source;
  cached.segment.type = static_cast<TokenType>(header.token_bytes);
  cached.segment.data = file->bytes().data() + sizeof(Header);
  cached.segment.count = header.tokens;
  cached.segment.documents = static_cast<int64_t>(header.documents);
  const std::byte* ends = file->bytes().data() + EndsOffset(header);
  cached.segment.document_end = [ends](int64_t document) {
    int64_t end = 0;
    std::memcpy(&end, ends + document * kEndBytes, sizeof(end));
    return end;
  };
  cached.segment.uncounted = uncounted;
  cached.segment.file = *std::move(file);
  cached.max_id = header.max_id;
  cached.was_cached = true;
  return cached;
}

// Ids in, the narrow form in a file out.
class CacheWriter {
 public:
  CacheWriter(std::string path, TokenType type) : path_(std::move(path)), type_(type) {}

  // Tokens are the text in another form: who may not read it may not read them.
  absl::Status Start(const std::string& source) {
    ASSIGN_OR_RETURN(fd_, CreateWithAccessOf(source, path_));
    const Header empty = {};
    return WriteAll(fd_, std::as_bytes(std::span(&empty, 1)), path_);
  }

  absl::Status Append(const std::vector<int32_t>& ids) {
    const size_t token_bytes = static_cast<size_t>(type_);
    narrow_.resize(ids.size() * token_bytes);
    for (size_t i = 0; i < ids.size(); ++i) {
      const uint32_t id = ids[i];
      max_id_ = std::max(max_id_, id);
      std::memcpy(narrow_.data() + i * token_bytes, &id, token_bytes);
    }
    tokens_ += ids.size();
    return WriteAll(fd_, narrow_, path_);
  }

  void EndDocument() { ends_.push_back(tokens_); }

  // The loss does not count these of the next tokens.
  void Uncounted(const std::vector<TokenSpan>& spans) {
    for (const TokenSpan& span : spans)
      uncounted_.push_back({tokens_ + span.begin, tokens_ + span.end});
  }

  absl::Status Finish(uint64_t key, const MappedFile& source) {
    Header header = {.version = kVersion,
                     .token_bytes = static_cast<uint32_t>(type_),
                     .tokens = tokens_,
                     .documents = ends_.size(),
                     .source_bytes = source.bytes().size(),
                     .source_modified_unix_ns = source.modified_unix_ns(),
                     .key = key,
                     .max_id = max_id_,
                     .spans = static_cast<uint32_t>(uncounted_.size())};
    std::memcpy(header.magic, kMagic, sizeof(kMagic));
    header.checksum = HeaderChecksum(header);
    const uint64_t written = sizeof(header) + tokens_ * header.token_bytes;
    const std::array<std::byte, kEndBytes> zeros = {};
    RETURN_IF_ERROR(WriteAll(fd_, std::span(zeros).first(EndsOffset(header) - written), path_));
    RETURN_IF_ERROR(WriteAll(fd_, std::as_bytes(std::span(ends_)), path_));
    RETURN_IF_ERROR(WriteAll(fd_, std::as_bytes(std::span(uncounted_)), path_));
    if (::pwrite(fd_.get(), &header, sizeof(header), 0) != sizeof(header)) {
      return FileError(errno, "write", path_);
    }
    return SyncFile(fd_, path_);
  }

 private:
  const std::string path_;
  const TokenType type_;
  UniqueFd fd_;
  std::vector<std::byte> narrow_;
  std::vector<uint64_t> ends_;
  std::vector<TokenSpan> uncounted_;
  uint64_t tokens_ = 0;
  uint32_t max_id_ = 0;
};

// Passes progress on about ten times a second.
class Throttle {
 public:
  explicit Throttle(const DataProgress& progress) : progress_(progress) {}
  void Report(std::string_view text, double fraction) {
    const auto now = std::chrono::steady_clock::now();
    if (!progress_ || (last_ && now - *last_ < std::chrono::milliseconds(100) && fraction < 1.0)) {
      return;
    }
    last_ = now;
    progress_(text, fraction);
  }

 private:
  const DataProgress& progress_;
  std::optional<std::chrono::steady_clock::time_point> last_;
};

absl::Status Tokenise(const TokenCacheRequest& request, const CacheName& name,
                      const MappedFile& source, const std::string& temporary,
                      const DataProgress& progress) {
  const Tokenizer& tokenizer = *request.tokenizer;
  const std::string activity =
      absl::StrCat("tokenising ", std::filesystem::path(request.source).filename().string());
  Throttle throttle(progress);
  CacheWriter writer(temporary, NarrowestType(tokenizer.vocabulary()));
  RETURN_IF_ERROR(writer.Start(request.source));
  std::vector<int32_t> ids;
  const bool any_bytes = tokenizer.fingerprint() == "bytes";
  RETURN_IF_ERROR(VisitText(
      source.bytes(), request.format, any_bytes, request.source, request.chats,
      [&](const TextPiece& piece) {
        ids.clear();
        if (piece.counted != nullptr && request.answers_alone) {
          writer.Uncounted(EncodeCounted(tokenizer, piece.text, *piece.counted, &ids));
        } else {
          tokenizer.Encode(piece.text, &ids);
        }
        if (piece.ends_document && !piece.ends_itself && tokenizer.end_of_text().has_value()) {
          ids.push_back(*tokenizer.end_of_text());
        }
        throttle.Report(activity,
                        static_cast<double>(piece.consumed_bytes) / source.bytes().size());
        RETURN_IF_ERROR(writer.Append(ids));
        if (piece.ends_document) writer.EndDocument();
        return absl::OkStatus();
      }));
  RETURN_IF_ERROR(writer.Finish(name.key, source));
  RETURN_IF_ERROR(Rename(temporary, name.path));
  return SyncDirectory(request.folder);
}

absl::StatusOr<UniqueFd> LockWithProgress(const std::string& path, const TokenCacheRequest& request,
                                          const DataProgress& progress) {
  for (;;) {
    absl::StatusOr<UniqueFd> lock = LockFile(path, kLockAttemptMs);
    if (!absl::IsUnavailable(lock.status())) return lock;
    if (progress) {
      progress(absl::StrCat("waiting for another process that tokenises ", request.source), 0.0);
    }
  }
}

}  // namespace

absl::StatusOr<CachedTokens> OpenTokenCache(const TokenCacheRequest& request,
                                            const DataProgress& progress) {
  ASSIGN_OR_RETURN(const MappedFile source, MappedFile::Open(request.source));
  const CacheName name = NameOf(request);
  if (std::optional<CachedTokens> cached = TryOpen(request, name, source)) {
    return *std::move(cached);
  }

  if (const absl::Status made = MakeDirectories(request.folder); !made.ok()) {
    return absl::Status(made.code(),
                        absl::StrCat(made.message(), "; name another folder with data.cache"));
  }
  ASSIGN_OR_RETURN(const UniqueFd lock,
                   LockWithProgress(absl::StrCat(name.path, ".lock"), request, progress));
  if (std::optional<CachedTokens> cached = TryOpen(request, name, source)) {
    return *std::move(cached);
  }
  const std::string temporary = absl::StrCat(name.path, ".tmp");
  if (absl::Status status = Tokenise(request, name, source, temporary, progress); !status.ok()) {
    RemoveAll(temporary).IgnoreError();  // the first failure is the one to report
    return status;
  }
  std::optional<CachedTokens> made = TryOpen(request, name, source);
  if (!made.has_value()) {
    return absl::DataLossError(absl::StrCat("the token cache ", name.path, " does not read back"));
  }
  made->was_cached = false;
  return *std::move(made);
}

}  // namespace terrace
