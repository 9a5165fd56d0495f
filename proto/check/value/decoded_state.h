// Frozen weights that rest as codes (Initializer.blocks) are decoded with the scales of just these
// blocks, in the format and blocks that their initializer announces. What passes read is that.
//
// Borrows all that it is given. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/check/instruction/instructions.h"
#include "proto/check/value/flow.h"
#include "proto/check/value/weights.h"
#include "proto/program/announced_weights.h"
#include "proto/v1/program.pb.h"

namespace terrace::check {

class DecodedState {
 public:
  DecodedState(const v1::Program& program, const StateIndex& state, const CheckedSequence& sequence,
               const Flow& flow)
      : program_(program),
        state_(state),
        sequence_(sequence),
        flow_(flow),
        announced_(AnnouncedByName(program)) {}

  // Instruction i, before the flow has passed it.
  absl::Status Check(int i) const;

 private:
  // State that lies in an operand: bytes [begin, end) of it, element `first` of the state's buffer
  // or region at `begin`.
  struct Piece {
    int64_t begin = 0, end = 0;
    int64_t first = 0;
    uint32_t origin = 0;
  };

  std::vector<Piece> PiecesOf(const Access& access, int64_t element_bytes) const;
  absl::Status CheckFormat(const Piece& codes, const CodeFormat& used,
                           const std::string& where) const;
  absl::Status CheckScales(const Piece& codes, const std::vector<Piece>& scales,
                           const CodeFormat& used, const std::string& where) const;

  const v1::Program& program_;
  const StateIndex& state_;
  const CheckedSequence& sequence_;
  const Flow& flow_;
  const std::map<std::string, AnnouncedWeight> announced_;
};

}  // namespace terrace::check
