// What the two decompressors share: where in the file they are, and the sentences about it.
//
// Used by one thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/paths/compression.h"
#include "worker/data/compressed/decompressor.h"

namespace terrace {

// Members or frames of one file, in a row.
class CompressedStream : public Decompressor {
 public:
  absl::StatusOr<size_t> Read(std::span<char> out) override;
  int64_t consumed_bytes() const override { return static_cast<int64_t>(at_); }

 protected:
  CompressedStream(std::string_view path, std::span<const std::byte> bytes)
      : path_(path), compression_(CompressionOf(path)), bytes_(bytes) {}

  struct Step {
    size_t read = 0, written = 0;
    bool ends = false;  // of the member
  };
  // Begins a member.
  virtual absl::Status Begin() = 0;
  // From `in`, perhaps empty, into `out`, which is not. Neither read nor written: it needs more.
  virtual absl::StatusOr<Step> Advance(std::span<const std::byte> in, std::span<char> out) = 0;

  absl::Status Damaged(std::string_view why) const;
  absl::Status Bad(std::string_view what, std::string_view way_out) const;

 private:
  // Whether another member follows; what follows otherwise is an error, short of zeros, which
  // pad files on tapes and blocks.
  absl::StatusOr<bool> NextMember();

  const std::string path_;
  const Compression compression_;
  const std::span<const std::byte> bytes_;
  size_t at_ = 0;
  bool inside_ = false;  // of a member
};

std::unique_ptr<Decompressor> NewGzip(std::string_view path, std::span<const std::byte> bytes);
std::unique_ptr<Decompressor> NewZstd(std::string_view path, std::span<const std::byte> bytes);

}  // namespace terrace
