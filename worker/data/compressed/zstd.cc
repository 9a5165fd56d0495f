// SPDX-License-Identifier: Apache-2.0
#include <zstd.h>
#include <zstd_errors.h>

#include "absl/strings/str_cat.h"
#include "worker/data/compressed/stream.h"

namespace terrace {
namespace {

struct FreeContext {
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

class Zstd final : public CompressedStream {
 public:
  Zstd(std::string_view path, std::span<const std::byte> bytes) : CompressedStream(path, bytes) {}

 private:
  absl::Status Begin() override {
    if (context_ == nullptr) context_.reset(ZSTD_createDCtx());
    if (context_ == nullptr) return absl::ResourceExhaustedError("zstd has no memory");
    ZSTD_DCtx_reset(context_.get(), ZSTD_reset_session_only);
    ZSTD_DCtx_setParameter(context_.get(), ZSTD_d_windowLogMax, kZstdWindowLogMax);
    return absl::OkStatus();
  }

  absl::StatusOr<Step> Advance(std::span<const std::byte> in, std::span<char> out) override {
    ZSTD_inBuffer from = {in.data(), in.size(), 0};
    ZSTD_outBuffer to = {out.data(), out.size(), 0};
    const size_t result = ZSTD_decompressStream(context_.get(), &to, &from);
    if (ZSTD_isError(result) == 0) return Step{from.pos, to.pos, /*ends=*/result == 0};
    if (ZSTD_getErrorCode(result) == ZSTD_error_frameParameter_windowTooLarge) {
      return Bad(absl::StrCat("a frame asks for a window of more than 2^", kZstdWindowLogMax,
                              " bytes (zstd --long)"),
                 absl::StrCat("compress it with zstd --long=", kZstdWindowLogMax, " or without"));
    }
    if (ZSTD_getErrorCode(result) == ZSTD_error_dictionary_wrong) {
      return Bad("the text was compressed with a dictionary (zstd -D), which no job names",
                 "compress it anew without one");
    }
    return Damaged(ZSTD_getErrorName(result));
  }

  std::unique_ptr<ZSTD_DCtx, FreeContext> context_;
};

}  // namespace

std::unique_ptr<Decompressor> NewZstd(std::string_view path, std::span<const std::byte> bytes) {
  return std::make_unique<Zstd>(path, bytes);
}

}  // namespace terrace
