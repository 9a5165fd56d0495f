// SPDX-License-Identifier: Apache-2.0
#include "proto/program/play_order.h"

#include <algorithm>

#include "proto/program/loops.h"

namespace terrace {
namespace {

class OrderWriter {
 public:
  OrderWriter(const v1::Sequence& sequence, const LoopIndex& index, int streams, int64_t leave_out)
      : sequence_(sequence),
        index_(index),
        leave_out_(leave_out),
        streams_(streams),
        begin_(PlacesInStreams()) {}

  PlayOrder Run() && {
    for (int i = 0; i < sequence_.instructions_size();) {
      const int loop = index_.LoopOf(i);
      const int count = loop == kNoLoop ? 1 : static_cast<int>(sequence_.loops(loop).count());
      const int64_t trips = loop == kNoLoop ? 1 : Trips(loop);
      for (int64_t iteration = 0; iteration < trips; ++iteration) {
        for (int k = 0; k < count; ++k) Add({i + k, iteration});
      }
      i += count;
    }
    return std::move(order_);
  }

 private:
  int64_t Trips(int loop) const { return int64_t{sequence_.loops(loop).trips()} - leave_out_; }

  void Add(PlayedInstruction played) {
    const v1::Instruction& instruction = sequence_.instructions(played.instruction);
    waits_.clear();
    for (const uint32_t wait : instruction.waits()) AddWait(played, static_cast<int>(wait), 0);
    for (const v1::BackWait& wait : instruction.back_waits())
      AddWait(played, static_cast<int>(wait.instruction()), wait.iterations());
    std::sort(waits_.begin(), waits_.end());
    waits_.erase(std::unique(waits_.begin(), waits_.end()), waits_.end());
    order_.waits.insert(order_.waits.end(), waits_.begin(), waits_.end());
    order_.waits_end.push_back(order_.waits.size());
    streams_[instruction.stream()].push_back(static_cast<uint32_t>(order_.played.size()));
    order_.played.push_back(played);
  }

  // By instruction: its place among what its stream executes, in iteration 0.
  std::vector<int64_t> PlacesInStreams() const {
    std::vector<int64_t> places;
    std::vector<int64_t> next(streams_.size(), 0);
    for (int i = 0; i < sequence_.instructions_size(); ++i) {
      places.push_back(next[sequence_.instructions(i).stream()]++);
      const int loop = index_.LoopOf(i);
      if (loop == kNoLoop ||
          sequence_.loops(loop).first() + sequence_.loops(loop).count() != i + 1u) {
        continue;
      }
      for (size_t s = 0; s < next.size(); ++s)
        next[s] += (Trips(loop) - 1) * index_.InBody(loop, static_cast<uint32_t>(s));
    }
    return places;
  }

  void AddWait(PlayedInstruction played, int wait, int64_t back) {
    const int loop = index_.LoopOf(wait);
    const uint32_t stream = sequence_.instructions(wait).stream();
    int64_t position = begin_[wait];
    if (loop != kNoLoop) {
      const bool inside = index_.LoopOf(played.instruction) == loop;
      const int64_t of = inside ? played.iteration : Trips(loop) - 1;
      position += (of - back) * index_.InBody(loop, stream);
    }
    if (position >= 0) waits_.push_back(streams_[stream][position]);
  }

  const v1::Sequence& sequence_;
  const LoopIndex& index_;
  const int64_t leave_out_;
  std::vector<std::vector<uint32_t>> streams_;  // by stream: places of what was written
  const std::vector<int64_t> begin_;            // by instruction, PlacesInStreams
  std::vector<uint32_t> waits_;                 // of one instruction
  PlayOrder order_;
};

PlayOrder AsItStands(const v1::Sequence& sequence) {
  PlayOrder order;
  for (int i = 0; i < sequence.instructions_size(); ++i) {
    order.played.push_back({.instruction = i});
    const auto& waits = sequence.instructions(i).waits();
    order.waits.insert(order.waits.end(), waits.begin(), waits.end());
    order.waits_end.push_back(order.waits.size());
  }
  return order;
}

}  // namespace

PlayOrder OrderOf(const v1::Sequence& sequence, const LoopIndex& index, int streams,
                  int64_t leave_out) {
  if (sequence.loops_size() == 0) return AsItStands(sequence);
  return OrderWriter(sequence, index, streams, leave_out).Run();
}

}  // namespace terrace
