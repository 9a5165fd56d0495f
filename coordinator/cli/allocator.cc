// How mimalloc, the allocator of who plans, gives memory back: half a second after it became free.
// By default that is 25 ms, less than one layout takes to compile: of a search a fifth of the
// processor's time went into pages that were given back and asked for again.
//
// An option is read at each use, so that it does not matter what was allocated before.
//
// SPDX-License-Identifier: Apache-2.0
#include <mimalloc.h>

namespace terrace {
namespace {

constexpr long kKeptMs = 500;

#if MI_MALLOC_VERSION >= 210
constexpr mi_option_t kDelay = mi_option_purge_delay;
#else
constexpr mi_option_t kDelay = mi_option_decommit_delay;
#endif

[[maybe_unused]] const bool kSet = (mi_option_set(kDelay, kKeptMs), true);

}  // namespace
}  // namespace terrace
