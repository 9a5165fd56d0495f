// The memory of a program by layer of the model: which layer's buffers hold what when a tier's
// arena holds most, or at any other instruction, and the most that each layer ever holds.
//
// A buffer belongs to the layer that its name tells ("mb0.layer3.attn"), else to the layer of the
// instruction that makes it; embedding and head count as layers; what is left is "other". Buckets
// of gradients belong to the layers whose gradients lie in them, each its bytes. Step buffers live
// from their first to their last instruction in list order.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/report/live_memory.h"
#include "proto/v1/program.pb.h"

namespace terrace {

struct LayerHeld {
  std::string layer;       // "embedding", "layer 3", "head", "other"
  ByClass bytes{};         // at the instruction of LayerMemory
  int64_t most_bytes = 0;  // at any instruction of the sequence
};
// One tier's arena in one sequence, at one instruction.
struct LayerMemory {
  uint32_t stage = 0;
  v1::Tier tier = v1::TIER_UNSPECIFIED;
  uint32_t instruction = 0;       // id; of a loop's, in the iteration that `words` name
  std::string words;              // of the instruction, as InstructionWords() has them
  std::vector<LayerHeld> layers;  // embedding first, head and other last; those that hold nothing
                                  // at any instruction are left out
};

// Of each tier with an arena, at the instruction at which it holds most. REQUIRES: the sequence is
// one of the program.
std::vector<LayerMemory> LayersAtPeak(const LiveMemory& memory, int sequence);
// The same at the given instruction, of a loop's in an iteration in its middle. REQUIRES: it is one
// of the sequence.
std::vector<LayerMemory> LayersAt(const LiveMemory& memory, int sequence, uint32_t instruction);

}  // namespace terrace
