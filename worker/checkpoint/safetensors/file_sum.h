// A 64-bit checksum of a file that several writers make in any order, each of what it writes: the
// file is a sequence of 32-bit little-endian words (zeros behind its end), and the sum is
//
//   sum over i of word[i] * key(i)    modulo 2^64, every key odd and as good as random
//
// so sums of parts add up to the sum of the whole. Any damage within one word changes it; damage
// of several is missed with a chance of 2^-32 at worst (two flipped sign bits), of 2^-64 mostly. It
// guards against accidents, not against forgers. docs/formats.md has the keys.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace terrace {

// What the bytes add to the sum of a file in which they begin at byte `offset`. Wraps around.
uint64_t SumOfPart(int64_t offset, std::span<const std::byte> bytes);

}  // namespace terrace
