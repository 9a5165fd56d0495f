// SPDX-License-Identifier: Apache-2.0
#include "worker/vm/resolve_waits.h"

#include <algorithm>

namespace terrace {
namespace {

int64_t ValueOr(const std::map<std::pair<uint32_t, uint32_t>, int64_t>& positions, uint32_t stream,
                uint32_t other, int64_t otherwise) {
  const auto found = positions.find({stream, other});
  return found == positions.end() ? otherwise : found->second;
}

}  // namespace

WaitResolver::WaitResolver(const v1::Sequence& sequence, const LoopIndex& loops, int streams)
    : sequence_(sequence), loops_(loops), seen_(streams, std::vector<int32_t>(streams, 0)) {
  const std::vector<std::vector<PlayedLoop>> played = LoopsOfStreams(sequence, streams);
  std::vector<int64_t> listed(streams, 0);
  for (const v1::Instruction& instruction : sequence.instructions()) {
    const uint32_t stream = instruction.stream();
    positions_.push_back(PlayedPosition(played[stream], listed[stream]++));
  }
}

WaitPoint WaitResolver::PointOf(int instruction, uint32_t target, int64_t back) const {
  const uint32_t stream = sequence_.instructions(static_cast<int>(target)).stream();
  const int loop = loops_.LoopOf(static_cast<int>(target));
  int64_t position = positions_[target] + 1;
  int64_t step = 0;
  if (loop != kNoLoop) {
    const int64_t in_body = loops_.InBody(loop, stream);
    const bool same = loops_.LoopOf(instruction) == loop;
    // From behind the loop its last iteration is meant.
    const int64_t iteration = same ? 0 : int64_t{sequence_.loops(loop).trips()} - 1;
    position += (iteration - back) * in_body;
    step = same ? in_body : 0;
  }
  // Nothing is waited for at 0 and below: no need to go further than all iterations can make up.
  return {.stream = stream,
          .position = static_cast<int32_t>(std::max(position, -kPlayedMax)),
          .step = static_cast<int32_t>(step)};
}

std::vector<WaitPoint> WaitResolver::Wanted(int instruction) const {
  const v1::Instruction& source = sequence_.instructions(instruction);
  std::vector<WaitPoint> wanted;
  const auto add = [&](uint32_t target, int64_t back) {
    const WaitPoint point = PointOf(instruction, target, back);
    if (point.stream == source.stream()) return;
    const auto same = std::find_if(wanted.begin(), wanted.end(), [&](const WaitPoint& other) {
      return other.stream == point.stream && other.step == point.step;
    });
    if (same == wanted.end()) {
      wanted.push_back(point);
    } else {
      same->position = std::max(same->position, point.position);
    }
  };
  for (const uint32_t target : source.waits()) add(target, 0);
  for (const v1::BackWait& wait : source.back_waits()) add(wait.instruction(), wait.iterations());
  std::sort(wanted.begin(), wanted.end(), [](const WaitPoint& a, const WaitPoint& b) {
    return std::pair(a.stream, -a.step) < std::pair(b.stream, -b.step);
  });
  return wanted;
}

void WaitResolver::Enter(int loop) {
  const v1::Loop& body = sequence_.loops(loop);
  for (uint32_t i = body.first(); i < body.first() + body.count(); ++i) {
    const uint32_t stream = sequence_.instructions(static_cast<int>(i)).stream();
    for (const WaitPoint& point : Wanted(static_cast<int>(i))) {
      if (point.step == 0) continue;
      int64_t& most = of_body_.try_emplace({stream, point.stream}, point.position).first->second;
      most = std::max<int64_t>(most, point.position);
    }
  }
}

void WaitResolver::Leave(int loop) {
  const int64_t trips = sequence_.loops(loop).trips();
  for (const auto& [streams, position] : in_body_) {
    int32_t& seen = seen_[streams.first][streams.second];
    const int64_t last = position + (trips - 1) * loops_.InBody(loop, streams.second);
    seen = std::max(seen, static_cast<int32_t>(last));
  }
  in_body_.clear();
  of_body_.clear();
}

bool WaitResolver::IsKnown(uint32_t stream, const WaitPoint& point, int64_t trips) const {
  const int64_t seen = seen_[stream][point.stream];
  const int64_t last = point.position + (trips - 1) * point.step;
  if (last <= seen) return true;
  const int64_t in_body = ValueOr(in_body_, stream, point.stream, -kPlayedMax - 1);
  if (point.position <= in_body) return true;
  // In iteration 0 by what came before the loop, in others by the iteration before.
  const int64_t of_body = ValueOr(of_body_, stream, point.stream, -kPlayedMax - 1);
  return point.step > 0 && point.position <= seen && point.position <= of_body - point.step;
}

std::vector<WaitPoint> WaitResolver::Next() {
  const int instruction = next_++;
  const int loop = loops_.LoopOf(instruction);
  const int before = instruction == 0 ? kNoLoop : loops_.LoopOf(instruction - 1);
  if (loop != before) {
    if (before != kNoLoop) Leave(before);
    if (loop != kNoLoop) Enter(loop);
  }
  const int64_t trips = loop == kNoLoop ? 1 : int64_t{sequence_.loops(loop).trips()};
  const uint32_t stream = sequence_.instructions(instruction).stream();
  std::vector<WaitPoint> kept;
  for (const WaitPoint& point : Wanted(instruction)) {
    if (IsKnown(stream, point, trips)) continue;
    if (point.step == 0) {
      seen_[stream][point.stream] = point.position;
    } else {
      in_body_[{stream, point.stream}] = point.position;
    }
    kept.push_back(point);
  }
  return kept;
}

}  // namespace terrace
