// AMX on this machine: permission, tile configuration, and the 32x32 block product that kernels
// build on.
//
// A block product multiplies two packed panels. A panel holds 32 rows of A (or 32 columns of B) for
// a run of K, cut into steps of 32: a step is two tiles of 1 KiB. A tile of A is 16 rows of 32
// bf16, dense. A tile of B is 16 rows, row p holding for each of 16 columns the pair (k = 2p, k =
// 2p + 1). Unused rows, columns and K are zeros.
//
// Tile operations are inline assembly that the compiler does not see as memory accesses: AmxFence()
// after writing panels with ordinary stores. AMX rounds to nearest even and counts subnormal inputs
// and results as zero. Thread rule: tiles belong to a thread; each thread that multiplies holds its
// own AmxTiles.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

// GCC 12's own headers warn when inlined (GCC bug 105593).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#pragma GCC diagnostic pop

#include <cstdint>

namespace terrace::kernels::cpu {

inline constexpr int64_t kAmxStep = 32;       // K of one step
inline constexpr int64_t kAmxTile = 16 * 32;  // bf16 elements of a tile
inline constexpr int64_t kAmxPanelStep =
    2 * kAmxTile;  // bf16 elements of one step of a panel of 32 rows

// On functions that contain tile operations or AVX-512 BF16 conversions.
#define TERRACE_AMX \
  __attribute__((   \
      target("amx-tile,amx-bf16,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma,avx2,bmi2")))

// True when this process may use AMX bf16: the CPU and the operating system have it, and the latter
// granted the tile state (it is asked on the first call; permission holds for all threads of the
// process). Thread-safe.
bool AmxReady();

// True when the CPU multiplies pairs of bf16 on AVX-512 vectors, which AMX implies. Thread-safe.
bool HasBF16Vectors();

inline void AmxFence() { asm volatile("" ::: "memory"); }

// All eight tiles as 16 rows of 64 bytes.
TERRACE_AMX inline void AmxConfigureTiles() {
  struct alignas(64) Config {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  };
  const Config config;
  asm volatile("ldtilecfg %0" ::"m"(config));
}
// Unused tiles are not saved at context switches.
TERRACE_AMX inline void AmxReleaseTiles() { asm volatile("tilerelease"); }

// Configured tiles, while this object lives. REQUIRES: AmxReady().
class AmxTiles {
 public:
  AmxTiles() { AmxConfigureTiles(); }
  ~AmxTiles() { AmxReleaseTiles(); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;
};

// The accumulators of a block are tiles 0..3 (rows 0-15 and 16-31, columns 0-15 and 16-31),
// operands pass through 4..7.
TERRACE_AMX inline void AmxZeroBlock() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// c is [32, 32] f32 inside rows of `stride` floats.
TERRACE_AMX inline void AmxLoadBlock(const float* c, int64_t stride) {
  AmxFence();
  _tile_loadd(0, c, stride * 4);
  _tile_loadd(1, c + 16, stride * 4);
  _tile_loadd(2, c + 16 * stride, stride * 4);
  _tile_loadd(3, c + 16 * stride + 16, stride * 4);
}

TERRACE_AMX inline void AmxStoreBlock(float* c, int64_t stride) {
  _tile_stored(0, c, stride * 4);
  _tile_stored(1, c + 16, stride * 4);
  _tile_stored(2, c + 16 * stride, stride * 4);
  _tile_stored(3, c + 16 * stride + 16, stride * 4);
  AmxFence();
}

// One step: the accumulators += A step * B step. The operand that is read from L2 while the other
// stays in L1 should be loaded with the streaming hint: it is a third faster.
TERRACE_AMX inline void AmxStep(const uint16_t* a, const uint16_t* b) {
  _tile_loadd(4, a, 64);
  _tile_loadd(6, b, 64);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(7, b + kAmxTile, 64);
  _tile_dpbf16ps(1, 4, 7);
  _tile_loadd(5, a + kAmxTile, 64);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

TERRACE_AMX inline void AmxStepStreamA(const uint16_t* a, const uint16_t* b) {
  _tile_stream_loadd(4, a, 64);
  _tile_loadd(6, b, 64);
  _tile_dpbf16ps(0, 4, 6);
  _tile_loadd(7, b + kAmxTile, 64);
  _tile_dpbf16ps(1, 4, 7);
  _tile_stream_loadd(5, a + kAmxTile, 64);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

TERRACE_AMX inline void AmxStepStreamB(const uint16_t* a, const uint16_t* b) {
  _tile_loadd(4, a, 64);
  _tile_stream_loadd(6, b, 64);
  _tile_dpbf16ps(0, 4, 6);
  _tile_stream_loadd(7, b + kAmxTile, 64);
  _tile_dpbf16ps(1, 4, 7);
  _tile_loadd(5, a + kAmxTile, 64);
  _tile_dpbf16ps(2, 5, 6);
  _tile_dpbf16ps(3, 5, 7);
}

// Transposes 16 rows of 16 dwords in place: from rows of K pairs (a tile of A) to rows of columns
// (a tile of B) and back.
TERRACE_AMX inline void Transpose16x16(__m512i v[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // v[4g + c]: of each 128-bit lane L, column 4L + c of rows 4g..4g+3.
  for (int c = 0; c < 4; ++c) {
    t[c] = _mm512_shuffle_i32x4(v[c], v[4 + c], 0x88);
    t[4 + c] = _mm512_shuffle_i32x4(v[c], v[4 + c], 0xdd);
    t[8 + c] = _mm512_shuffle_i32x4(v[8 + c], v[12 + c], 0x88);
    t[12 + c] = _mm512_shuffle_i32x4(v[8 + c], v[12 + c], 0xdd);
  }
  for (int c = 0; c < 4; ++c) {
    v[c] = _mm512_shuffle_i32x4(t[c], t[8 + c], 0x88);
    v[8 + c] = _mm512_shuffle_i32x4(t[c], t[8 + c], 0xdd);
    v[4 + c] = _mm512_shuffle_i32x4(t[4 + c], t[12 + c], 0x88);
    v[12 + c] = _mm512_shuffle_i32x4(t[4 + c], t[12 + c], 0xdd);
  }
}

}  // namespace terrace::kernels::cpu
