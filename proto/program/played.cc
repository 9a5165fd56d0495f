// SPDX-License-Identifier: Apache-2.0
#include "proto/program/played.h"

#include <algorithm>

namespace terrace {

std::vector<std::vector<PlayedLoop>> LoopsOfStreams(const v1::Sequence& sequence, int streams) {
  std::vector<std::vector<PlayedLoop>> loops(streams);
  std::vector<int64_t> listed(streams, 0), played(streams, 0);
  int loop = 0;
  for (int i = 0; i < sequence.instructions_size(); ++i) {
    while (loop < sequence.loops_size() &&
           i >= int64_t{sequence.loops(loop).first()} + sequence.loops(loop).count()) {
      ++loop;
    }
    const uint32_t s = sequence.instructions(i).stream();
    const int64_t index = listed[s]++;
    if (loop == sequence.loops_size() || i < int64_t{sequence.loops(loop).first()}) {
      ++played[s];
      continue;
    }
    const int64_t trips = sequence.loops(loop).trips();
    if (loops[s].empty() || loops[s].back().loop != loop)
      loops[s].push_back({.loop = loop, .first = index, .trips = trips, .begin = played[s]});
    ++loops[s].back().count;
    played[s] += trips;
  }
  return loops;
}

int64_t PlayedPosition(std::span<const PlayedLoop> loops, int64_t index) {
  const auto next =
      std::upper_bound(loops.begin(), loops.end(), index,
                       [](int64_t at, const PlayedLoop& loop) { return at < loop.first; });
  if (next == loops.begin()) return index;
  const PlayedLoop& last = *(next - 1);
  const int64_t behind = index - last.first;
  return behind < last.count ? last.begin + behind : last.end() + behind - last.count;
}

PlayedPlace PlaceAt(std::span<const PlayedLoop> loops, int64_t position) {
  const auto next =
      std::upper_bound(loops.begin(), loops.end(), position,
                       [](int64_t at, const PlayedLoop& loop) { return at < loop.begin; });
  return PlaceAfter(next == loops.begin() ? nullptr : &*(next - 1), position);
}

PlayedPlace PlaceAfter(const PlayedLoop* last, int64_t position) {
  if (last == nullptr) return {.index = position};
  if (position >= last->end()) return {.index = last->first + last->count + position - last->end()};
  const int64_t behind = position - last->begin;
  return {
      .index = last->first + behind % last->count, .iteration = behind / last->count, .loop = last};
}

}  // namespace terrace
