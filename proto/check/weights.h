// The checker's fifth part: who writes what lasts. Only the optimizer of "train" writes the state
// of the manifest, every element once and with the moments that belong to it; what "restore"
// derives from weights "train" derives itself, by gathering alone; nobody else writes persistent
// buffers.
//
// Borrows the program. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "proto/check/instructions.h"
#include "proto/check/ranges.h"
#include "proto/v1/program.pb.h"

namespace terrace::check {

// The state manifest by address. REQUIRES: CheckState passed.
class StateIndex {
 public:
  explicit StateIndex(const v1::Program& program);

  // The bytes of the buffer that hold state.
  const ByteSet& bytes(uint32_t buffer) const { return filled_[buffer]; }
  // The elements of a rank's shard; 0: the buffer is no shard.
  int64_t shard_elements(uint32_t buffer) const;
  // Calls `visit` for the ranges with bytes between those of [begin, end) of the buffer, or of the
  // region of its shards.
  void ForEach(uint32_t buffer, int64_t begin, int64_t end,
               const std::function<void(const v1::StateRange&)>& visit) const;
  // Both buffers hold shards, and the regions hold the same places of the same tensors, as `kind`
  // in the second.
  bool SameRegion(uint32_t weights, uint32_t moments, v1::StateKind kind) const;

 private:
  struct Entry {
    int64_t begin = 0, end = 0, end_max = 0;  // bytes; end_max: of this entry and those before it
    const v1::StateRange* range = nullptr;
  };
  std::vector<ByteSet> filled_;
  std::vector<std::vector<Entry>> by_buffer_;  // by begin
  mutable std::map<std::pair<uint32_t, uint32_t>, bool> same_;
};

// Two ranges hold the same elements at equal distances from their offsets.
bool SamePlaces(const v1::StateRange& a, const v1::StateRange& b);

absl::Status CheckPersistentWrites(const v1::Program& program, const StateIndex& state,
                                   const CheckedSequence& sequence);

// The optimizer ops of "train".
class Updates {
 public:
  Updates(const v1::Program& program, const StateIndex& state);

  // One of them: what it updates are weights, no element was updated before, and each goes with its
  // own moments.
  absl::Status Add(const CheckedInstruction& instruction, const std::string& where);
  // After all: no weight was left out.
  absl::Status CheckComplete() const;

 private:
  absl::Status CheckMoment(const Access& param, const Access& moment, v1::StateKind kind,
                           const std::string& where) const;

  const v1::Program& program_;
  const StateIndex& state_;
  std::vector<ByteMap> updated_;  // by buffer
};

}  // namespace terrace::check
