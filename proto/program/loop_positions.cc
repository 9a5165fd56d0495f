// SPDX-License-Identifier: Apache-2.0
#include "proto/program/loop_positions.h"

#include <algorithm>
#include <cstddef>
#include <set>

#include "proto/program/loops.h"

namespace terrace {

int64_t IterationsToTellPositions(const v1::Program& program) {
  size_t streams = 1;
  for (const v1::Sequence& sequence : program.sequences()) {
    std::set<uint32_t> in_body;
    for (const v1::Loop& loop : sequence.loops()) {
      for (uint32_t i = 0; i < loop.count(); ++i)
        in_body.insert(sequence.instructions(static_cast<int>(loop.first() + i)).stream());
    }
    streams = std::max(streams, in_body.size());
  }
  const int64_t turn = TurnOf(program), show = IterationsThatShow(program);
  const int64_t ahead = std::max(turn, show - 2 * turn);  // of a stream before its neighbour
  return show + turn + static_cast<int64_t>(streams - 1) * ahead;
}

LoopPositions::LoopPositions(const v1::Program& program, const v1::Sequence& sequence,
                             int64_t left_out)
    : turn_(TurnOf(program)), left_out_(left_out) {
  if (sequence.loops().empty()) return;
  const LoopIndex index(sequence);
  std::vector<int64_t> executed(program.streams_size(), 0);  // by stream
  int next = 0;
  for (int l = 0; l < sequence.loops_size(); ++l) {
    const v1::Loop& loop = sequence.loops(l);
    for (; next < static_cast<int>(loop.first()); ++next)
      ++executed[sequence.instructions(next).stream()];
    next = static_cast<int>(loop.first() + loop.count());
    Loop& here = loops_.emplace_back(Loop{.trips = loop.trips(), .parts = {}});
    for (size_t s = 0; s < executed.size(); ++s) {
      here.parts.push_back({executed[s], index.InBody(l, static_cast<uint32_t>(s))});
      executed[s] += here.parts[s].in_body * here.trips;
    }
  }
}

int64_t LoopPositions::Loop::IterationOf(size_t stream, int32_t finished) const {
  const Part& part = parts[stream];
  if (part.in_body == 0 || finished < part.begin) return -1;
  return std::min((finished - part.begin) / part.in_body, trips);
}

LoopPositions::Place LoopPositions::Of(std::span<const int32_t> finished) const {
  Place place{.finished = {finished.begin(), finished.end()}, .skipped = {}};
  for (const Loop& loop : loops_) {
    int64_t slowest = loop.trips;
    for (size_t s = 0; s < finished.size(); ++s) {
      if (loop.parts[s].in_body > 0) slowest = std::min(slowest, loop.IterationOf(s, finished[s]));
    }
    const int64_t skipped = std::clamp<int64_t>((slowest / turn_ - 1) * turn_, 0, left_out_);
    place.skipped.push_back(skipped);
    for (size_t s = 0; s < finished.size(); ++s) {
      const int64_t iteration = loop.IterationOf(s, finished[s]);
      if (iteration < 0) continue;
      const int64_t off = iteration == loop.trips ? left_out_ : skipped;
      place.finished[s] -= static_cast<int32_t>(off * loop.parts[s].in_body);
    }
  }
  return place;
}

}  // namespace terrace
