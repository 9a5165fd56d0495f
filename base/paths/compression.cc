// SPDX-License-Identifier: Apache-2.0
#include "base/paths/compression.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/strings.h"

namespace terrace {
namespace {

struct Kind {
  Compression compression;
  std::string_view extension;
  std::string_view name;
};
constexpr Kind kKinds[] = {{Compression::kGzip, ".gz", "gzip"},
                           {Compression::kZstd, ".zst", "zstd"}};

// A name that is nothing but the extension says nothing of a file inside.
const Kind* KindOf(std::string_view path) {
  for (const Kind& kind : kKinds) {
    if (path.ends_with(kind.extension)) return &kind;
  }
  return nullptr;
}

const Kind* KindOf(Compression compression) {
  for (const Kind& kind : kKinds) {
    if (kind.compression == compression) return &kind;
  }
  return nullptr;
}

}  // namespace

Compression CompressionOf(std::string_view path) {
  const Kind* kind = KindOf(path);
  return kind == nullptr ? Compression::kNone : kind->compression;
}

std::string_view WithoutCompression(std::string_view path) {
  const Kind* kind = KindOf(path);
  if (kind != nullptr) path.remove_suffix(kind->extension.size());
  return path;
}

Compression CompressionIn(std::span<const std::byte> bytes) {
  const auto at = [&](size_t i) { return static_cast<uint32_t>(bytes[i]); };
  if (bytes.size() >= 2 && at(0) == 0x1f && at(1) == 0x8b) return Compression::kGzip;
  if (bytes.size() < kMagicBytes) return Compression::kNone;
  const uint32_t magic = at(0) | at(1) << 8 | at(2) << 16 | at(3) << 24;
  // A frame, or one of the sixteen kinds that readers skip (RFC 8878).
  const bool is_zstd = magic == 0xfd2fb528u || (magic & ~0xfu) == 0x184d2a50u;
  return is_zstd ? Compression::kZstd : Compression::kNone;
}

absl::Status CheckCompression(std::string_view path, std::span<const std::byte> head) {
  const Kind* said = KindOf(path);
  const Compression is = CompressionIn(head);
  if (said == nullptr || said->compression == is) return absl::OkStatus();
  const std::string begins = absl::StrCat(Absl(path), " does not begin as ", Absl(said->name));
  if (head.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(begins, ": it is empty; an empty text, compressed, has bytes"));
  }
  if (const Kind* other = KindOf(is)) {
    return absl::InvalidArgumentError(absl::StrCat(
        begins, " but as ", Absl(other->name), "; let its name end in ", Absl(other->extension)));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(begins, "; let its name end in what it is, without ", Absl(said->extension),
                   " if it is not compressed"));
}

}  // namespace terrace
