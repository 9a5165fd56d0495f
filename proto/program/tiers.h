// On which tier of memory a buffer of a program lies, and what that asks of its offsets.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "proto/v1/program.pb.h"

namespace terrace {

// Direct I/O moves whole blocks of the file system to whole pages.
inline constexpr int64_t kNvmeAlignment = 4096;

// Offsets and sizes of buffers in an arena are multiples of this.
inline constexpr int64_t ArenaAlignment(v1::Tier tier) {
  return tier == v1::DEVICE ? 256 : kNvmeAlignment;
}

// REQUIRES: the buffer's arena exists.
inline v1::Tier TierOf(const v1::Program& program, const v1::Buffer& buffer) {
  return program.arenas(static_cast<int>(buffer.arena())).tier();
}

}  // namespace terrace
