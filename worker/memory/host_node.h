// Which NUMA node memory should come from. Raw system calls: libnuma is not needed for two of them.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace terrace {

// "0-1,4" -> {0, 1, 4}; empty when it is not such a list.
std::vector<int> ParseNodeList(std::string_view text);

// Nodes that have memory, from /sys below `root`.
std::vector<int> MemoryNodes(std::string_view root = "");

// The node of the CPU that the calling thread runs on; nothing where there is only one, or when the
// node has no memory.
std::optional<int> LocalNode(std::string_view root = "");

// Pages of `memory` that are touched from now on come from `node` while it has any, then from
// others. False when the system refuses: then they come from wherever they are touched.
// REQUIRES: memory starts at a page.
bool PreferNode(std::span<std::byte> memory, int node);

}  // namespace terrace
