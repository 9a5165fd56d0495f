// Tells a file's compression by its name, and whether its bytes agree with that.
//
// Pure. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "absl/status/status.h"

namespace terrace {

enum class Compression { kNone, kGzip, kZstd };

// "x.jsonl.gz": kGzip, "x.txt.zst": kZstd, others: kNone.
Compression CompressionOf(std::string_view path);
// "x.jsonl" of "x.jsonl.gz".
std::string_view WithoutCompression(std::string_view path);

// As much of the beginning of a compressed file as CompressionIn() looks at.
inline constexpr size_t kMagicBytes = 4;
// Returns kGzip or kZstd where `bytes` begin as a file of that kind does, else kNone.
Compression CompressionIn(std::span<const std::byte> bytes);

// INVALID_ARGUMENT where a file that its name calls compressed begins otherwise, with what it is
// and the way out. `head`: its first bytes, at least kMagicBytes where it has them.
absl::Status CheckCompression(std::string_view path, std::span<const std::byte> head);

}  // namespace terrace
