// Scratch bytes of the attention ops on the CPU backend, and how one thread's part of it is
// divided.
//
// In: the op, its attributes and operand shapes. Out: bytes, or the sizes of the pieces that the
// CPU kernels carve. It depends on nothing else, so that a plan made on one machine holds on
// another: it is the largest over all code paths (AMX with one or three bf16 parts an element,
// AVX-512 and AVX2 with f32).
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "kernels/op.h"

namespace terrace::kernels {

// Queries that the forward kernel holds at a time, and keys that it takes in one go.
inline constexpr int64_t kAttentionQueryBlock = 32;
inline constexpr int64_t kAttentionKeyBlock = 128;
// Queries of one forward task: a task packs the keys it sees once.
inline constexpr int64_t kAttentionQueryChunk = 512;
// Queries and keys of one block of the backward kernel.
inline constexpr int64_t kAttentionGradBlock = 128;
// Sequence and head dimension are padded with zeros to multiples of this: two AMX tiles, two
// AVX-512 vectors.
inline constexpr int64_t kAttentionPad = 32;
// kAttentionCached computes up to so many new tokens of a sequence one by one, as they lie, and
// takes so many keys in one go.
inline constexpr int64_t kDecodeTokens = 4;
inline constexpr int64_t kDecodeKeys = 64;

// Sizes of one task; the workspace holds `bytes` for each thread.
struct AttentionScratch {
  int64_t keys = 0;           // most keys that one task packs, padded
  int64_t head_dim = 0;       // padded
  int64_t element_bytes = 0;  // room for one packed element on any path
  int64_t bytes = 0;          // for one thread, a multiple of 64
};

// REQUIRES: op is one of the attention ops, and CheckShapes is empty. `keys`: of a sequence; 0:
// attrs.sequence.
AttentionScratch AttentionScratchSizes(Op op, const AttentionAttrs& attrs, int64_t head_dim,
                                       int64_t keys = 0);

// The workspace of kAttentionCached: `threads` times the scratch of one, and behind it, in f32, the
// log-sum-exp of every row.
struct CachedAttentionScratch {
  CachedAttentionScratch(const AttentionAttrs& attrs, std::span<const TensorShape> operands,
                         int threads);

  bool one_by_one;       // a thread's scratch is that of DecodeAttention, and there is nothing else
  int64_t thread_bytes;  // a multiple of 64
  int64_t bytes;         // of all
};

// What one piece of queries and one of keys is as attention of its own, but for their offset.
AttentionAttrs PieceAttrs(const AttentionBlockAttrs& attrs);

int64_t AttentionWorkspaceBytes(Op op, const OpAttrs& attrs, std::span<const TensorShape> operands,
                                int threads);

}  // namespace terrace::kernels
