// Why a few iterations of a loop stand for all: what the checker knows of content (flow.h) at the
// head of one is what it knew at the head of the one before, with everything moved on by an
// iteration. Values of iteration i are those of i + 1, micro-batch m is m plus those of an
// iteration; and a sum that goes through the micro-batches has got those of one iteration more. An
// iteration does to what was moved what it did before, moved: so this is true of all heads that
// follow, and no later iteration meets anything new. docs/program.md argues this at length.
//
// At the end of a loop the iterations that were left out are made up for: content becomes what it
// is behind all of them, so that what follows is checked against all micro-batches of the step.
//
// Borrows what it is given. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/check/instruction/instructions.h"
#include "proto/check/instruction/written.h"
#include "proto/check/value/flow.h"
#include "proto/v1/program.pb.h"

namespace terrace::check {

class FixedPoint {
 public:
  // `program` is the one that was written out, `sequence` one of it.
  FixedPoint(const v1::Program& program, const CheckedSequence& sequence, Flow* flow);

  // The flow stands before instruction i; behind all of them when there is none such.
  absl::Status Reach(int i);

 private:
  static constexpr int kHeads = 3;  // the last two iterations' and the end
  using Numbers = std::array<int, kHeads>;
  // A buffer, the same in all iterations, or the slots of values and the value's number from that
  // of the iteration on.
  using Key = std::pair<uint32_t, int64_t>;
  using Content = std::map<Key, ByteMap>;
  static constexpr int64_t kPlain = INT64_MIN;

  Content ContentAt(const Repeat& repeat, int64_t iteration) const;
  absl::Status Close(const Repeat& repeat);
  absl::Status CloseBuffer(const Repeat& repeat, const Key& key);
  absl::Status CloseArray(const Repeat& repeat, uint32_t buffer);
  int64_t RowsIn(const ByteMap& content, uint32_t buffer) const;
  // What stands in the place of these numbers behind the iterations that were left out.
  absl::StatusOr<int> After(const Repeat& repeat, const Numbers& numbers);
  absl::StatusOr<int> AfterScatter(const Repeat& repeat, const Numbers& numbers);
  // Whether `later` is `value` an iteration further on.
  bool IsMoved(const Value& value, const Value& later, int64_t by, int head);
  bool IsOneGradient(const Value& value, const Value& later, int head);
  int Age(int gradient, int head) const;
  std::string TextOf(int number) const;
  std::string LoopText(const Repeat& repeat) const;
  int64_t RowBytes(uint32_t buffer) const;

  const v1::Program& program_;
  const CheckedSequence& sequence_;
  Flow& flow_;
  size_t next_ = 0;  // repeat
  std::array<Content, kHeads> heads_;
  std::vector<int> gradients_;    // by head of the loop: how many there were
  std::map<Numbers, int> known_;  // answers of After
};

}  // namespace terrace::check
