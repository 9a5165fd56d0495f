// SPDX-License-Identifier: Apache-2.0
#include <zlib.h>

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "worker/data/compressed/stream.h"

namespace terrace {
namespace {

constexpr int kGzipOnly = 16 + MAX_WBITS;  // as inflateInit2() wants to be told

// zlib counts bytes in 32 bits.
uInt AtMost32(size_t bytes) {
  return static_cast<uInt>(std::min<size_t>(bytes, std::numeric_limits<uInt>::max()));
}

class Gzip final : public CompressedStream {
 public:
  Gzip(std::string_view path, std::span<const std::byte> bytes) : CompressedStream(path, bytes) {}
  ~Gzip() override {
    if (started_) inflateEnd(&stream_);
  }
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;

 private:
  absl::Status Begin() override {
    const int result = started_ ? inflateReset(&stream_) : inflateInit2(&stream_, kGzipOnly);
    if (result != Z_OK) return absl::ResourceExhaustedError("zlib has no memory for a window");
    started_ = true;
    return absl::OkStatus();
  }

  absl::StatusOr<Step> Advance(std::span<const std::byte> in, std::span<char> out) override {
    const uInt in_bytes = AtMost32(in.size()), out_bytes = AtMost32(out.size());
    // zlib reads there only, whatever the type says.
    stream_.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(in.data()));
    stream_.avail_in = in_bytes;
    stream_.next_out = reinterpret_cast<Bytef*>(out.data());
    stream_.avail_out = out_bytes;
    const int result = inflate(&stream_, Z_NO_FLUSH);
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
      return Damaged(stream_.msg == nullptr ? "as zlib finds it" : stream_.msg);
    return Step{.read = in_bytes - stream_.avail_in,
                .written = out_bytes - stream_.avail_out,
                .ends = result == Z_STREAM_END};
  }

  z_stream stream_ = {};
  bool started_ = false;
};

}  // namespace

std::unique_ptr<Decompressor> NewGzip(std::string_view path, std::span<const std::byte> bytes) {
  return std::make_unique<Gzip>(path, bytes);
}

}  // namespace terrace
