// How the CPU backend cuts a product C[M,N] = A[M,K] B[K,N] into pieces, in plain numbers.
//
// C is cut into blocks of 32 x 32; a panel is the 32 rows of A or columns of B that a block needs.
// K is cut into chunks whose panels fit the L1 cache, and chunks are taken in groups whose packed
// panels stay reasonably small. The longer side of C is divided among threads: each packs its
// panels of that side privately, a few at a time (L2), and multiplies them with all panels of the
// other side, which the threads pack together. Where C is small, all of its sums stay in the caches
// and one or two chunks of K are packed at a time. The cuts of K into chunks depend on K and the
// arithmetic alone, and chunks are always added in their order, hence results do not depend on the
// number of threads.
//
// In: sizes. Out: counts and bytes, for kernels/gemm_workspace.cc and kernels/cpu/gemm.cc.
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

namespace terrace::kernels {

inline constexpr int64_t kGemmPanel = 32;
inline constexpr int64_t kGemmBlockBytes = kGemmPanel * kGemmPanel * 4;
// Products of so few rows keep them in f32 and read B as it lies (kernels/cpu/gemv.cc), a group of
// rows at a time.
inline constexpr int64_t kGemvRows = 16;
inline constexpr int kGemvGroup = 4;
constexpr int64_t GemvFactorRows(int64_t m) {
  return m <= kGemvGroup ? m : (m + kGemvGroup - 1) / kGemvGroup * kGemvGroup;
}

// What one kind of arithmetic asks for.
struct GemmArithmetic {
  int64_t element_bytes = 0;   // of a packed element
  int64_t step = 0;            // chunks are padded to a multiple of it
  int64_t max_chunk = 0;       // most K of a chunk: a panel's chunk takes up to 48 KiB
  int64_t chunks_at_once = 0;  // most chunks that are packed at a time
};
inline constexpr GemmArithmetic kAmxBF16Arithmetic = {2, 32, 384, 8};
inline constexpr GemmArithmetic kAmxSplitArithmetic = {6, 32, 128, 12};  // f32 as three bf16 parts
inline constexpr GemmArithmetic kVectorArithmetic = {4, 2, 192,
                                                     8};  // f32, or pairs of bf16 at half the room

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct GemmBlocking {
  GemmBlocking(const GemmArithmetic& arithmetic, int64_t m, int64_t n, int64_t k, int threads)
      : rows_private(m >= n),
        private_panels(CeilDiv(std::max(m, n), kGemmPanel)),
        shared_panels(CeilDiv(std::min(m, n), kGemmPanel)),
        chunks(std::max<int64_t>(1, CeilDiv(k, arithmetic.max_chunk))),
        chunk(std::max<int64_t>(1, CeilDiv(CeilDiv(k, chunks), arithmetic.step)) * arithmetic.step),
        panel_chunk_bytes(kGemmPanel * chunk * arithmetic.element_bytes),
        caches_sums(chunks > 2 && SumsBytes() <= threads * kCachedSumsBytes),
        chunks_at_once(std::clamp<int64_t>(caches_sums
                                               ? kSharedBytes / (shared_panels * panel_chunk_bytes)
                                               : arithmetic.chunks_at_once,
                                           1, chunks)),
        panels_at_once(std::clamp<int64_t>(kPrivateBytes / (panel_chunk_bytes * chunks_at_once), 1,
                                           std::min(kMaxPanelsAtOnce, private_panels))) {}

  bool rows_private;  // the private side is A's rows, else B's columns
  int64_t private_panels;
  int64_t shared_panels;
  int64_t chunks;  // of K
  int64_t chunk;   // K of a chunk; of the last one possibly less
  int64_t panel_chunk_bytes;
  bool caches_sums;
  int64_t chunks_at_once;
  int64_t panels_at_once;  // of the private side, by one thread

  int64_t SharedBytes() const { return shared_panels * chunks_at_once * panel_chunk_bytes; }
  // Two where groups follow each other quickly: the next is packed while slower threads still read
  // the last.
  int64_t SharedBuffers() const { return caches_sums ? 2 : 1; }
  int64_t PrivateBytes() const { return panels_at_once * chunks_at_once * panel_chunk_bytes; }
  // Running sums of blocks between chunks: those a thread is at, or all of C when K needs more than
  // one group.
  bool keeps_all_sums() const { return chunks > chunks_at_once; }
  int64_t AllSumsBytes() const { return keeps_all_sums() ? SumsBytes() : 0; }
  int64_t ThreadBytes() const { return PrivateBytes() + (panels_at_once + 2) * kGemmBlockBytes; }
  int64_t WorkspaceBytes(int threads) const {
    return SharedBuffers() * SharedBytes() + AllSumsBytes() + threads * ThreadBytes();
  }

 private:
  int64_t SumsBytes() const { return private_panels * shared_panels * kGemmBlockBytes; }

  // Parts of an L2 cache of 2 MiB.
  static constexpr int64_t kSharedBytes = 640 << 10;  // of a group of chunks, where sums are cached
  static constexpr int64_t kPrivateBytes = 1280 << 10;  // of an L2 cache of 2 MiB
  static constexpr int64_t kCachedSumsBytes = 2560
                                              << 10;  // of one thread, in L2 or not far from it
  static constexpr int64_t kMaxPanelsAtOnce = 16;
};

}  // namespace terrace::kernels
