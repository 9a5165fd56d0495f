// Reads packing problems (testdata/README.md), and judges packings in the plainest way. For tests
// and benchmarks.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "coordinator/compiler/pack/pack.h"

namespace terrace {

inline std::vector<PackBuffer> ReadPackBuffers(const std::string& path) {
  std::vector<PackBuffer> buffers;
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);  // the header
  while (std::getline(file, line)) {
    std::replace(line.begin(), line.end(), ',', ' ');
    std::istringstream fields(line);
    PackBuffer buffer;
    fields >> buffer.name >> buffer.begin >> buffer.end >> buffer.bytes;
    buffers.push_back(buffer);
  }
  return buffers;
}

// A stage of a real program: its step buffers, and the bytes that lie beside them all the time.
struct PackStage {
  std::vector<PackBuffer> buffers;
  int64_t persistent_bytes = 0;
};

// The last row of its file is what lies there all the time. Without it there are no buffers.
inline PackStage ReadPackStage(const std::string& path) {
  PackStage stage = {.buffers = ReadPackBuffers(path)};
  if (stage.buffers.empty() || stage.buffers.back().name != "persistent") return {};
  stage.persistent_bytes = stage.buffers.back().bytes;
  stage.buffers.pop_back();
  return stage;
}

// All pairs that meet: the first two buffers that share a byte at some time, as text; empty when
// there are none.
inline std::string FirstOverlap(const std::vector<PackBuffer>& buffers, const Packing& packing) {
  std::vector<size_t> by_birth(buffers.size());
  for (size_t i = 0; i < by_birth.size(); ++i) by_birth[i] = i;
  std::sort(by_birth.begin(), by_birth.end(),
            [&](size_t a, size_t b) { return buffers[a].begin < buffers[b].begin; });
  for (size_t k = 0; k < by_birth.size(); ++k) {
    const size_t a = by_birth[k];
    for (size_t l = k + 1; l < by_birth.size(); ++l) {
      const size_t b = by_birth[l];
      if (buffers[b].begin >= buffers[a].end) break;  // so are all after it
      if (packing.offsets[a] < packing.offsets[b] + buffers[b].bytes &&
          packing.offsets[b] < packing.offsets[a] + buffers[a].bytes) {
        return buffers[a].name + " and " + buffers[b].name;
      }
    }
  }
  return "";
}

// The largest sum of aligned sizes alive at one time, by changes per time.
inline int64_t LowerBound(const std::vector<PackBuffer>& buffers) {
  std::map<int64_t, int64_t> change;
  for (const PackBuffer& buffer : buffers) {
    const int64_t bytes = (buffer.bytes + kPackAlignment - 1) / kPackAlignment * kPackAlignment;
    change[buffer.begin] += bytes;
    change[buffer.end] -= bytes;
  }
  int64_t alive = 0, most = 0;
  for (const auto& [time, bytes] : change) most = std::max(most, alive += bytes);
  return most;
}

}  // namespace terrace
