// What codes of gradients were not worth (kEncodeBlocks in kernels/op.h with a residual) is kept
// beside the weights that the gradient is of: the next codes of the same elements make good for it,
// those of others would be spoilt by it.
//
// Borrows all that it is given. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "proto/check/instruction/instructions.h"
#include "proto/check/value/flow.h"
#include "proto/check/value/links.h"
#include "proto/check/value/ranges.h"
#include "proto/check/value/weights.h"
#include "proto/v1/program.pb.h"

namespace terrace::check {

class Residuals {
 public:
  Residuals(const v1::Program& program, const StateIndex& state, const CheckedSequence& train,
            const Flow& flow);

  // Instruction i, before the flow has passed it: what it keeps is a RESIDUAL of the manifest, and
  // it encodes gradients.
  absl::Status Check(int i);
  // After all: they were gradients of the weights that each residual is of, and every residual was
  // kept.
  absl::Status CheckComplete() const;

 private:
  // A gradient that instruction i has encoded, and where its weights would be.
  struct Use {
    int instruction = 0;
    int gradient = 0;
    StatePlace weights;
    const v1::StateRange* residual = nullptr;
  };

  absl::Status CheckGradients(int i, const v1::StateRange& residual);
  const v1::StateRange* WeightsOf(const v1::StateRange& residual) const;

  const v1::Program& program_;
  const StateIndex& state_;
  const CheckedSequence& train_;
  const Flow& flow_;
  std::map<std::string, std::vector<const v1::StateRange*>> weights_;  // by tensor
  std::vector<ByteMap> kept_;                                          // by buffer
  std::vector<Use> uses_;
};

}  // namespace terrace::check
