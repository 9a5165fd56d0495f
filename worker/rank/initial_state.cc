// SPDX-License-Identifier: Apache-2.0
#include "worker/rank/initial_state.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

namespace terrace {
namespace {

constexpr int64_t kZeroBlockBytes = 64 << 20;

void Zero(std::byte* data, int64_t bytes, int threads) {
  if (bytes <= kZeroBlockBytes || threads < 2) {
    std::memset(data, 0, bytes);
    return;
  }
  const int64_t part = (bytes + threads - 1) / threads;
  std::vector<std::jthread> workers;
  for (int64_t begin = 0; begin < bytes; begin += part) {
    workers.emplace_back([=] { std::memset(data + begin, 0, std::min(part, bytes - begin)); });
  }
}

// Angles in double precision: at position 10^5 a float has lost all of the fraction that matters.
void FillRopeTable(const v1::RopeTable& table, int64_t positions, float* out) {
  const int half = table.inverse_frequency_size();
  for (int64_t p = 0; p < positions; ++p) {
    for (int i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p) * table.inverse_frequency(i);
      out[p * 2 * half + i] = static_cast<float>(std::cos(angle) * table.attention_factor());
      out[p * 2 * half + half + i] = static_cast<float>(std::sin(angle) * table.attention_factor());
    }
  }
}

}  // namespace

void FillInitialState(const v1::Program& program, std::span<std::byte* const> arenas, int threads) {
  for (const v1::Buffer& buffer : program.buffers()) {
    if (buffer.lifetime() == v1::PERSISTENT && buffer.class_() != v1::EXTERNAL) {
      Zero(arenas[buffer.arena()] + buffer.offset(), buffer.bytes(), threads);
    }
  }
  for (const v1::RopeTable& table : program.rope_tables()) {
    const v1::Buffer& buffer = program.buffers(table.buffer());
    FillRopeTable(table, buffer.shape(0),
                  reinterpret_cast<float*>(arenas[buffer.arena()] + buffer.offset()));
  }
}

}  // namespace terrace
