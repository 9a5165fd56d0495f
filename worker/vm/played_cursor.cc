// SPDX-License-Identifier: Apache-2.0
#include "worker/vm/played_cursor.h"

#include <algorithm>

namespace terrace {
namespace {

// The last loop that begins at or before the position; null: there is none.
const RecordedLoop* LastBefore(std::span<const RecordedLoop> loops, int64_t position) {
  const auto next =
      std::upper_bound(loops.begin(), loops.end(), position,
                       [](int64_t at, const RecordedLoop& loop) { return at < loop.begin; });
  return next == loops.begin() ? nullptr : &*(next - 1);
}

}  // namespace

std::vector<std::vector<RecordedLoop>> RecordedLoops(const v1::Sequence& sequence, int streams) {
  std::vector<std::vector<RecordedLoop>> recorded;
  for (const std::vector<PlayedLoop>& loops : LoopsOfStreams(sequence, streams)) {
    std::vector<RecordedLoop>& stream = recorded.emplace_back();
    int64_t skipped = 0;  // played positions before the loop without a slice
    for (const PlayedLoop& loop : loops) {
      const int64_t body = sequence.loops(loop.loop).count();
      const int64_t room =
          std::max<int64_t>(2, kRecordedInLoopsMax / (int64_t{sequence.loops_size()} * body));
      const int64_t iterations = std::min(room, loop.trips);
      stream.push_back({loop, (iterations + 1) / 2, iterations / 2, loop.begin - skipped});
      skipped += stream.back().left_out() * loop.count;
    }
  }
  return recorded;
}

int64_t CountPlayed(std::span<const RecordedLoop> loops, size_t instructions) {
  if (loops.empty()) return static_cast<int64_t>(instructions);
  const RecordedLoop& last = loops.back();
  return last.end() + static_cast<int64_t>(instructions) - last.first - last.count;
}

int64_t CountRecorded(std::span<const RecordedLoop> loops, size_t instructions) {
  int64_t count = CountPlayed(loops, instructions);
  for (const RecordedLoop& loop : loops) count -= loop.left_out() * loop.count;
  return count;
}

PlayedPlace PlaceAt(std::span<const RecordedLoop> loops, int64_t position) {
  return PlaceAfter(LastBefore(loops, position), position);
}

int64_t SliceAt(std::span<const RecordedLoop> loops, int64_t position) {
  const RecordedLoop* const loop = LastBefore(loops, position);
  if (loop == nullptr) return std::max(position, kNotRecorded);
  const int64_t behind = position - loop->begin;  // the loop's first instruction
  if (behind < loop->head * loop->count) return loop->slices + behind;
  if (behind < (loop->trips - loop->tail) * loop->count) return kNotRecorded;
  return loop->slices + behind - loop->left_out() * loop->count;
}

void PlayedCursor::Turn() {
  if (!in_loop_) return Go();
  const RecordedLoop& loop = loops_[next_];
  if (++iteration_ < loop.trips) {
    index_ = static_cast<int32_t>(loop.first);
    recorded_ = loop.IsRecorded(iteration_);
    return;
  }
  ++next_;
  Go();
}

void PlayedCursor::Go() {
  iteration_ = 0;
  recorded_ = true;
  in_loop_ = next_ < loops_.size() && loops_[next_].first == index_;
  bound_ = instructions_;
  if (next_ < loops_.size()) {
    const RecordedLoop& loop = loops_[next_];
    bound_ = static_cast<int32_t>(in_loop_ ? loop.first + loop.count : loop.first);
  }
}

void PlayedCursor::SkipLeftOut() {
  const RecordedLoop& loop = loops_[next_];
  position_ += static_cast<int32_t>((loop.trips - loop.tail - iteration_) * loop.count);
  iteration_ = static_cast<int32_t>(loop.trips - loop.tail);
  recorded_ = true;
}

}  // namespace terrace
