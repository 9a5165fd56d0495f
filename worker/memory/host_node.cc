// SPDX-License-Identifier: Apache-2.0
#include "worker/memory/host_node.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdint>
#include <fstream>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/strings.h"

namespace terrace {
namespace {

constexpr int kMaxNodes = 1024;  // CONFIG_NODES_SHIFT is at most 10
constexpr int kBitsPerWord = sizeof(unsigned long) * CHAR_BIT;

}  // namespace

std::vector<int> ParseNodeList(std::string_view text) {
  std::vector<int> nodes;
  for (absl::string_view range :
       absl::StrSplit(absl::StripAsciiWhitespace(Absl(text)), ',', absl::SkipEmpty())) {
    const std::vector<std::string> ends = absl::StrSplit(range, '-');
    int first = 0, last = 0;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &first) ||
        !absl::SimpleAtoi(ends.back(), &last) || first < 0 || last < first || last >= kMaxNodes) {
      return {};
    }
    for (int node = first; node <= last; ++node) nodes.push_back(node);
  }
  return nodes;
}

std::vector<int> MemoryNodes(std::string_view root) {
  std::ifstream file(absl::StrCat(Absl(root), "/sys/devices/system/node/has_memory"));
  std::string line;
  std::getline(file, line);
  return ParseNodeList(line);
}

std::optional<int> LocalNode(std::string_view root) {
  const std::vector<int> nodes = MemoryNodes(root);
  unsigned cpu = 0, node = 0;
  if (nodes.size() < 2 || ::syscall(SYS_getcpu, &cpu, &node, nullptr) != 0) return std::nullopt;
  if (std::find(nodes.begin(), nodes.end(), static_cast<int>(node)) == nodes.end())
    return std::nullopt;
  return static_cast<int>(node);
}

bool PreferNode(std::span<std::byte> memory, int node) {
  if (node < 0 || node >= kMaxNodes) return false;
  std::array<unsigned long, kMaxNodes / kBitsPerWord> mask{};
  mask[node / kBitsPerWord] = 1UL << (node % kBitsPerWord);
  return ::syscall(SYS_mbind, memory.data(), memory.size(), MPOL_PREFERRED, mask.data(),
                   kMaxNodes + 1, 0) == 0;
}

}  // namespace terrace
