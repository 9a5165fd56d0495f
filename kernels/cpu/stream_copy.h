// Copies what the copying core will not read again soon: tensors on their way between tiers.
//
// Large copies use streaming stores: the target is not fetched before it is overwritten, which
// memcpy does for sizes below a share of the last-level cache that the C library guesses too large
// on virtual machines. Small copies are memcpy's, so that the target stays in the cache.
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace terrace::kernels::cpu {

// From this size on the stores are streaming: more than a core's own caches hold.
inline constexpr int64_t kStreamCopyBytes = 1 << 20;

// When it returns, other threads see the copy after any ordinary synchronisation. REQUIRES: the
// ranges do not overlap; any alignment (64 bytes of `to` and `from` alike is fastest).
void StreamCopy(std::byte* to, const std::byte* from, int64_t bytes);

}  // namespace terrace::kernels::cpu
