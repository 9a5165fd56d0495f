// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/memory_peak.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "coordinator/compiler/pack/liveness.h"

namespace terrace {
namespace {

struct Change {
  int64_t time = 0;
  int64_t bytes = 0;  // negative at a death; deaths come before births of the same time
  v1::BufferClass cls = v1::ACTIVATION;
};

std::vector<Change> ChangesOf(const v1::Program& program, const v1::Sequence& sequence,
                              uint32_t arena) {
  const std::vector<Life> lives = Liveness(program, sequence);
  std::vector<Change> changes;
  for (int i = 0; i < program.buffers_size(); ++i) {
    const v1::Buffer& buffer = program.buffers(i);
    if (buffer.lifetime() != v1::STEP || buffer.arena() != arena || lives[i].begin == lives[i].end)
      continue;
    changes.push_back({lives[i].begin, buffer.bytes(), buffer.class_()});
    changes.push_back({lives[i].end, -buffer.bytes(), buffer.class_()});
  }
  std::sort(changes.begin(), changes.end(), [](const Change& a, const Change& b) {
    return std::tuple(a.time, a.bytes, a.cls) < std::tuple(b.time, b.bytes, b.cls);
  });
  return changes;
}

}  // namespace

int64_t Total(const BytesByClass& bytes) {
  int64_t total = 0;
  for (const auto& [cls, amount] : bytes) total += amount;
  return total;
}

SequencePeak PeakOfSequence(const v1::Program& program, const v1::Sequence& sequence,
                            uint32_t arena) {
  SequencePeak peak = {.sequence = &sequence};
  const std::vector<Change> changes = ChangesOf(program, sequence, arena);
  BytesByClass alive;
  int64_t alive_bytes = 0, peak_bytes = 0;
  for (const Change& change : changes) {
    alive[change.cls] += change.bytes;
    alive_bytes += change.bytes;
    peak.most[change.cls] = std::max(peak.most[change.cls], alive[change.cls]);
    if (alive_bytes <= peak_bytes) continue;
    peak.bytes = alive;
    peak.time = change.time;
    peak_bytes = alive_bytes;
  }
  return peak;
}

SequencePeak PeakOf(const v1::Program& program, uint32_t arena) {
  SequencePeak most;
  for (const v1::Sequence& sequence : program.sequences()) {
    SequencePeak peak = PeakOfSequence(program, sequence, arena);
    if (most.sequence == nullptr || Total(peak.bytes) > Total(most.bytes)) most = std::move(peak);
  }
  return most;
}

}  // namespace terrace
