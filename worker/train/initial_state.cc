// SPDX-License-Identifier: Apache-2.0
#include "worker/train/initial_state.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "base/status_macros.h"

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

// The cosines, then the sines of one position. Angles in double precision: at position 10^5 a float
// has lost all of the fraction that matters.
void FillRopeRow(const v1::RopeTable& table, int64_t position, std::span<float> out) {
  const int half = table.inverse_frequency_size();
  for (int i = 0; i < half; ++i) {
    const double angle = static_cast<double>(position) * table.inverse_frequency(i);
    out[i] = static_cast<float>(std::cos(angle) * table.attention_factor());
    out[half + i] = static_cast<float>(std::sin(angle) * table.attention_factor());
  }
}

absl::Status WriteRopeTable(const v1::RopeTable& table, const v1::Buffer& buffer, Region* region) {
  std::vector<float> row(2 * table.inverse_frequency_size());
  const auto bytes = std::as_bytes(std::span(row));
  for (int64_t position = 0; position < buffer.shape(0); ++position) {
    FillRopeRow(table, position, row);
    RETURN_IF_ERROR(
        region->Write(buffer.offset() + position * static_cast<int64_t>(bytes.size()), bytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FillInitialState(const v1::Program& program, std::span<Region* const> regions,
                              int threads) {
  for (const v1::Buffer& buffer : program.buffers()) {
    if (buffer.lifetime() != v1::PERSISTENT || buffer.class_() == v1::EXTERNAL) continue;
    Region* const region = regions[buffer.arena()];
    if (region->data() != nullptr) {
      Zero(region->data() + buffer.offset(), buffer.bytes(), threads);
    } else if (program.arenas(buffer.arena()).tier() != v1::NVME) {
      RETURN_IF_ERROR(region->Zero(buffer.offset(), buffer.bytes()));
    }
  }
  for (const v1::RopeTable& table : program.rope_tables()) {
    const v1::Buffer& buffer = program.buffers(table.buffer());
    RETURN_IF_ERROR(WriteRopeTable(table, buffer, regions[buffer.arena()]));
  }
  return absl::OkStatus();
}

}  // namespace terrace
