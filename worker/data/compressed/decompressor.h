// Reads a compressed text from its beginning to its end, in pieces: gzip (RFC 1952) by zlib, zstd
// (RFC 8878) by libzstd.
//
// A file may have several members or frames, whose texts follow each other (pigz, bgzip, cat). The
// bytes of the file are to outlive the decompressor. Used by one thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/paths/compression.h"

namespace terrace {

// What a zstd frame may ask for: 2^27 bytes, which is what every reader gives without being told.
inline constexpr int kZstdWindowLogMax = 27;

class Decompressor {
 public:
  virtual ~Decompressor() = default;

  // The next bytes of the text: as many as there is room for, fewer where it ends, then none.
  // INVALID_ARGUMENT names the file, the byte of it and the way out: it is damaged, cut off, or
  // followed by something else.
  virtual absl::StatusOr<size_t> Read(std::span<char> out) = 0;

  // Bytes of the file that were used so far.
  virtual int64_t consumed_bytes() const = 0;
};

// `path` says which compression it is, and is for messages. REQUIRES: it is compressed.
absl::StatusOr<std::unique_ptr<Decompressor>> OpenDecompressor(std::string_view path,
                                                               std::span<const std::byte> bytes);

}  // namespace terrace
