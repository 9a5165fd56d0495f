// The checker's fourth part: the state manifest. Every range lies in a persistent buffer, the
// ranges of a tensor cover it exactly once, no two share memory; initialisers, rope tables and ties
// name what exists.
//
// All ranks of a stage are decided at once, whatever their number: the parts of a split are equal
// and follow one another, the shards of a region too, so that the union over the ranks is one
// rectangle a range, and the first of those that hold the same is its owner (OwnsState in
// proto/program/state_layout.h).
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/check/value/ranges.h"
#include "proto/v1/program.pb.h"

namespace terrace::check {

// Rows of rectangles that are not dense in memory are walked one by one.
inline constexpr int64_t kStateRowsMax = 1 << 24;

// REQUIRES: CheckStructure passed.
absl::Status CheckState(const v1::Program& program);

// "state WEIGHT of 'lm_head.weight'"
std::string RangeText(const v1::StateRange& range);

// -1 when a size is not positive or the product too large.
int64_t Elements(const google::protobuf::RepeatedField<int64_t>& shape);

// Where the rectangle lies: bytes of the buffer or, with shards, of the region. REQUIRES:
// CheckState passed (and so for the next).
Rows RowsIn(const v1::StateRange& range);

// The bytes of the buffer that hold the range once the state was filled: padding is zero, so a
// shard is filled as a whole.
Rows FilledBytes(const v1::StateRange& range);

}  // namespace terrace::check
