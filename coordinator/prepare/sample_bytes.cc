// SPDX-License-Identifier: Apache-2.0
#include "coordinator/prepare/sample_bytes.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "coordinator/prepare/search_sample.h"
#include "proto/caching_need.h"

namespace terrace {
namespace {

const v1::Arena* ArenaOf(const v1::Program& program, v1::Tier tier) {
  for (const v1::Arena& arena : program.arenas()) {
    if (arena.tier() == tier) return &arena;
  }
  return nullptr;
}

// What each micro-batch has of its own.
BytesByClass MissingInputs(const Evaluated& evaluated, size_t stage) {
  const v1::Program& program = evaluated.programs[stage];
  int64_t inputs = 0;
  for (const v1::Buffer& buffer : program.buffers()) {
    if (buffer.class_() == v1::INPUT) inputs += buffer.bytes();
  }
  const int64_t compiled = std::max<int64_t>(1, program.rules().micro_batches());
  const int64_t missing = evaluated.layout.micro_batches() - compiled;
  return {{v1::INPUT, (inputs + compiled - 1) / compiled * missing}};
}

SequencePeak PeakOnTier(const v1::Program& program, v1::Tier tier) {
  const v1::Arena* arena = ArenaOf(program, tier);
  return arena == nullptr ? SequencePeak() : PeakOf(program, arena->id());
}

// At a moment of the whole step, by the same of a sample's two steps.
BytesByClass Extrapolated(const BytesByClass& longer, BytesByClass shorter, double times) {
  BytesByClass whole;
  for (const auto& [cls, bytes] : longer) {
    const double more = times * static_cast<double>(bytes - shorter[cls]);
    whole[cls] = std::max<int64_t>(0, bytes + std::llround(more));
  }
  return whole;
}

// From the peak of the sample to that of the whole step, where it ends or where the most
// activations are alive.
BytesByClass MissingActivations(const Evaluated& evaluated, size_t stage, v1::Tier tier) {
  const SequencePeak longer = PeakOnTier(evaluated.programs[stage], tier);
  const SequencePeak shorter = PeakOnTier(evaluated.shorter[stage], tier);
  const double times = TimesBeyond(evaluated);
  BytesByClass whole = Extrapolated(longer.bytes, shorter.bytes, times);
  BytesByClass other = Extrapolated(longer.with_activations, shorter.with_activations, times);
  if (Total(other) > Total(whole)) whole = std::move(other);
  for (const auto& [cls, bytes] : longer.bytes) whole[cls] -= bytes;
  return whole;
}

}  // namespace

BytesByClass MissingBytes(const Evaluated& evaluated, size_t stage, v1::Tier tier) {
  if (evaluated.shorter.empty()) return {};
  if (evaluated.layout.schedule() == "gpipe") {
    BytesByClass missing = MissingActivations(evaluated, stage, tier);
    if (Total(missing) > 0) return missing;
  }
  return tier == v1::DEVICE ? MissingInputs(evaluated, stage) : BytesByClass();
}

int64_t BytesOf(const Evaluated& evaluated, size_t stage, v1::Tier tier) {
  const v1::Program& program = evaluated.programs[stage];
  return ReservedBytesNeeded(program, tier) + (tier == v1::DEVICE ? program.external_bytes() : 0) +
         Total(MissingBytes(evaluated, stage, tier));
}

}  // namespace terrace
