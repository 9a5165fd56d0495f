// Writes a token file (*.bin) that nanoGPT, llm.c and data.train read: uint16, or uint32 for larger
// vocabularies.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "worker/data/token_segment.h"

namespace terrace {

enum class TokenFileFormat { kLlmc, kRaw };

// The segments one after the other, under a temporary name, fsynced, renamed. INVALID_ARGUMENT when
// llm.c's header cannot hold the count (2^31 - 1); RESOURCE_EXHAUSTED on a full disk, and nothing
// stays behind.
absl::Status WriteTokenFile(const std::string& path, TokenFileFormat format, int64_t vocabulary,
                            const std::vector<const TokenSegment*>& segments);

}  // namespace terrace
