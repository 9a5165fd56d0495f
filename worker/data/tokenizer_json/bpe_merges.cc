// SPDX-License-Identifier: Apache-2.0
#include "worker/data/tokenizer_json/bpe_merges.h"

#include <algorithm>

namespace terrace::tokenizer_json {
namespace {

constexpr int32_t kNone = -1;
constexpr int32_t kMergedAway = -1;  // id of a symbol that is part of the one to its left

using Candidate = BpeMerges::Scratch::Candidate;
bool Later(const Candidate& a, const Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

}  // namespace

void BpeMerges::Add(int32_t left, int32_t right, int32_t merged) {
  merges_[Key(left, right)] = {next_rank_++, merged};
}

void BpeMerges::Propose(int32_t left, Scratch* scratch) const {
  const Scratch::Symbol& symbol = scratch->symbols[left];
  if (symbol.next == kNone) return;
  const auto merge = merges_.find(Key(symbol.id, scratch->symbols[symbol.next].id));
  if (merge == merges_.end()) return;
  scratch->heap.push_back({merge->second.rank, left, merge->second.merged});
  std::push_heap(scratch->heap.begin(), scratch->heap.end(), Later);
}

void BpeMerges::Merge(const std::vector<int32_t>& start, Scratch* scratch,
                      std::vector<int32_t>* ids) const {
  std::vector<Scratch::Symbol>& symbols = scratch->symbols;
  const int32_t count = static_cast<int32_t>(start.size());
  symbols.resize(count);
  for (int32_t i = 0; i < count; ++i) {
    symbols[i] = {start[i], i - 1, i + 1 < count ? i + 1 : kNone};
  }
  scratch->heap.clear();
  for (int32_t i = 0; i + 1 < count; ++i) Propose(i, scratch);
  while (!scratch->heap.empty()) {
    std::pop_heap(scratch->heap.begin(), scratch->heap.end(), Later);
    const Candidate best = scratch->heap.back();
    scratch->heap.pop_back();
    Scratch::Symbol& left = symbols[best.position];
    if (left.id == kMergedAway || left.next == kNone) continue;
    Scratch::Symbol& right = symbols[left.next];
    // Proposed for symbols that have changed since?
    const auto merge = merges_.find(Key(left.id, right.id));
    if (merge == merges_.end() || merge->second.merged != best.merged) continue;
    left.id = best.merged;
    left.next = right.next;
    right.id = kMergedAway;
    if (left.next != kNone) symbols[left.next].previous = best.position;
    if (left.previous != kNone) Propose(left.previous, scratch);
    Propose(best.position, scratch);
  }
  for (int32_t i = 0; i != kNone && i < count; i = symbols[i].next) ids->push_back(symbols[i].id);
}

}  // namespace terrace::tokenizer_json
