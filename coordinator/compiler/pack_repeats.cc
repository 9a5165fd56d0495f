// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pack_repeats.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

namespace terrace {
namespace {

// Items of one size and life, by birth.
using Alike = std::map<std::pair<int64_t, int>, std::vector<int>>;

// What lives as short as this fits anywhere and has too many repeats to count.
constexpr int kShortLife = 2;

Alike GroupAlike(const PackProblem& problem) {
  Alike alike;
  for (int i = 0; i < static_cast<int>(problem.items.size()); ++i) {
    const PackItem& item = problem.items[i];
    alike[{item.bytes, item.life()}].push_back(i);
  }
  for (auto& [key, items] : alike) {
    std::stable_sort(items.begin(), items.end(),
                     [&](int a, int b) { return problem.items[a].begin < problem.items[b].begin; });
  }
  return alike;
}

// In slots; of equals the shortest. 0: nothing comes again after it has died.
int BestDistance(const PackProblem& problem, const Alike& alike) {
  std::vector<int64_t> area(problem.slots + 1);  // by distance: bytes x life that come again
  for (const auto& [key, items] : alike) {
    const auto [bytes, life] = key;
    if (life <= kShortLife) continue;
    for (size_t a = 0; a < items.size(); ++a) {
      for (size_t b = a + 1; b < items.size(); ++b) {
        const int distance = problem.items[items[b]].begin - problem.items[items[a]].begin;
        if (distance >= life) area[distance] += bytes / kPackAlignment * life;
      }
    }
  }
  const auto best = std::max_element(area.begin(), area.end());
  return *best == 0 ? 0 : static_cast<int>(best - area.begin());
}

}  // namespace

PackChains SinglePackChains(const PackProblem& problem) {
  PackChains chains(problem.items.size());
  for (int i = 0; i < static_cast<int>(chains.size()); ++i) chains[i] = {i};
  return chains;
}

PackChains MakePackChains(const PackProblem& problem) {
  const Alike alike = GroupAlike(problem);
  const int distance = BestDistance(problem, alike);
  PackChains chains;
  if (distance == 0) return chains;
  for (const auto& [key, items] : alike) {
    std::multimap<int, size_t> open;  // chains by the birth that would go on
    for (const int i : items) {
      const PackItem& item = problem.items[i];
      const auto found = item.life() <= distance ? open.find(item.begin) : open.end();
      size_t chain = chains.size();
      if (found == open.end()) {
        chains.emplace_back();
      } else {
        chain = found->second;
        open.erase(found);
      }
      chains[chain].push_back(i);
      open.insert({item.begin + distance, chain});
    }
  }
  return chains;
}

}  // namespace terrace
