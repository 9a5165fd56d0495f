// When an arena holds the most, and of what: the moments that memory is reported of.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>

#include "proto/v1/program.pb.h"

namespace terrace {

using BytesByClass = std::map<v1::BufferClass, int64_t>;
int64_t Total(const BytesByClass& bytes);

// STEP bytes of one sequence in an arena. Programs have no loops (proto/program/played_program.h).
struct SequencePeak {
  const v1::Sequence* sequence = nullptr;
  int64_t time = 0;    // position in the sequence when most are alive
  BytesByClass bytes;  // then
  BytesByClass most;   // of each class at its own peak
};
SequencePeak PeakOfSequence(const v1::Program& program, const v1::Sequence& sequence,
                            uint32_t arena);
// Of the sequence with the largest.
SequencePeak PeakOf(const v1::Program& program, uint32_t arena);

}  // namespace terrace
