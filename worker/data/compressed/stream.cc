// SPDX-License-Identifier: Apache-2.0
#include "worker/data/compressed/stream.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace terrace {

absl::Status CompressedStream::Bad(std::string_view what, std::string_view way_out) const {
  return absl::InvalidArgumentError(absl::StrCat(path_, ": ", Absl(what), " at byte ", at_, " of ",
                                                 bytes_.size(), "; ", Absl(way_out)));
}

absl::Status CompressedStream::Damaged(std::string_view why) const {
  return Bad(absl::StrCat("the compressed text is damaged (", Absl(why), ")"), "get the file anew");
}

absl::StatusOr<bool> CompressedStream::NextMember() {
  const std::span<const std::byte> rest = bytes_.subspan(at_);
  if (CompressionIn(rest) == compression_) return true;
  const bool is_padding =
      std::all_of(rest.begin(), rest.end(), [](std::byte byte) { return byte == std::byte{0}; });
  if (is_padding) return false;
  return Bad("the compressed text ends, but something else follows",
             "cut the file off there, or get it anew");
}

absl::StatusOr<size_t> CompressedStream::Read(std::span<char> out) {
  size_t written = 0;
  while (written < out.size()) {
    if (!inside_) {
      ASSIGN_OR_RETURN(inside_, NextMember());
      if (!inside_) break;
      RETURN_IF_ERROR(Begin());
    }
    // What was read last may still have text to give where the file has ended.
    ASSIGN_OR_RETURN(const Step step, Advance(bytes_.subspan(at_), out.subspan(written)));
    if (step.read == 0 && step.written == 0 && !step.ends)
      return Bad("the compressed text is cut off", "get the file anew");
    at_ += step.read;
    written += step.written;
    inside_ = !step.ends;
  }
  return written;
}

absl::StatusOr<std::unique_ptr<Decompressor>> OpenDecompressor(std::string_view path,
                                                               std::span<const std::byte> bytes) {
  RETURN_IF_ERROR(CheckCompression(path, bytes));
  return CompressionOf(path) == Compression::kGzip ? NewGzip(path, bytes) : NewZstd(path, bytes);
}

}  // namespace terrace
