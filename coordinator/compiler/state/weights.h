// The weights as one pass sees them: those that are always there, and those that are prefetched to
// the device for it, on first use: from the tier where they rest, with ZeRO-3 gathered from all
// ranks' shards, or both, each rank fetching its own. When that happens is fetch.h's and
// insertions.h's.
//
// With layout.gather_format a rank's shard is encoded in blocks (kernels/block_codes.h), codes and
// scales are gathered, and decoded where the weights are used: block-wise quantised all-gather,
// Wang et al. 2023 (ZeRO++, arXiv 2306.10209, section 3.1). What rests as codes (Unit::codes)
// travels as these.
//
// Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include "coordinator/compiler/graph/builder.h"
#include "coordinator/compiler/state/parameters.h"
#include "coordinator/compiler/tiers/tiers.h"

namespace terrace::compiler {

class Weights {
 public:
  // Borrows all. `chunk_bytes`: of one copy between tiers; 0: the default.
  Weights(const Parameters& parameters, const Parallel& parallel, int64_t chunk_bytes,
          Builder* builder)
      : parameters_(parameters),
        parallel_(parallel),
        builder_(*builder),
        copies_(chunk_bytes, builder) {}

  // The weight of the parameter that starts with the tensor of this role; absent when the model has
  // none.
  Slice Of(TensorRole role, int layer = kNone);
  // That of one parameter.
  Slice OfParameter(int index);
  // Forgets all prefetched weights, since a new layer begins.
  void Forget() { prefetched_.clear(); }

  // The whole weights of a unit from their shards, into memory that stays.
  void Restore(const Unit& unit);
  // Rounds a unit's master weights into the copy in fewer bits that it keeps.
  void Round(const Unit& unit);

 private:
  void Gather(const Unit& unit);
  void GatherInto(const Unit& unit, Slice all);
  // As GatherInto, of what rests as codes.
  void GatherCodes(const Unit& unit, Slice all);
  // A new value for a unit's elements, or for what their blocks have.
  Slice Message(const char* kind, const Unit& unit, kernels::DType dtype, int64_t elements);
  // This rank's piece, as it is gathered.
  Slice OnDevice(const Unit& unit, Slice rest);
  static int Lasting(const Parameter& parameter);
  void Fetch(int parameter);
  // Decodes weights that rest as codes and that this rank holds whole.
  void Decode(int parameter);
  // `rest` on the device, in memory named `name` of a type of its own where it is not there.
  Slice Fetched(const Slice& rest, const std::string& name);

  const Parameters& parameters_;
  const Parallel& parallel_;
  Builder& builder_;
  TierCopies copies_;
  std::map<int, int> prefetched_;  // parameter -> value
};

// True for what may come ahead of the use of a unit's weights, all of them on the device: their
// gather into memory of its own and, where they travel as codes, what makes these.
bool GathersWeights(const Graph& graph, const Node& node);
// True for what makes weights of gathered codes, where they are used.
bool DecodesWeights(const Graph& graph, const Node& node);

}  // namespace terrace::compiler
