// Random numbers by position, normal or uniform: element i of a stream is a pure function of (seed,
// stream, i), so any rank, thread or layout computes the same values for the part it holds.
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) and
// Box-Muller, in arithmetic that rounds the same on every machine (no fused multiply-add, no libm).
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace terrace {

using PhiloxBlock = std::array<uint32_t, 4>;
PhiloxBlock Philox4x32(PhiloxBlock counter, std::array<uint32_t, 2> key);

// The stream of a tensor.
uint64_t StreamOfName(std::string_view name);

// out[i] = mean + stddev * normal(seed, stream, begin + i). Magnitudes stay below 5.9 standard
// deviations.
void FillNormal(uint64_t seed, uint64_t stream, int64_t begin, float mean, float stddev,
                std::span<float> out);
// The same over the interval of that mean and standard deviation.
void FillUniform(uint64_t seed, uint64_t stream, int64_t begin, float mean, float stddev,
                 std::span<float> out);

}  // namespace terrace
