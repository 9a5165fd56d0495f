// The attention engines for CPUs with bf16 arithmetic (x86 only): their functions.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cpu/attention.h"

namespace terrace::kernels::cpu {

// What computes the products of tiles.
enum class TileUnits {
  kAmx,       // operands are rounded to bf16. REQUIRES: AmxReady() (kernels/cpu/amx.h)
  kAmxSplit,  // the same with operands in three bf16 parts each: as exact as f32 products
  kVectors,   // operands are rounded to bf16. REQUIRES: HasBF16Vectors() (kernels/cpu/amx.h)
};

AttentionTaskFunction* TilesForward(TileUnits units);
AttentionTaskFunction* TilesBackward(TileUnits units);

inline AttentionEngine TilesAttentionEngine(TileUnits units) {
  return {.forward = TilesForward(units), .backward = TilesBackward(units)};
}

}  // namespace terrace::kernels::cpu
