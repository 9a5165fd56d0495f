// Memory by layer for people and for scripts: a table with a bar a layer, the hot spots, and what
// would lower each.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/report/layer_memory.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/plan.pb.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// What one class holds in one layer, or in several that hold the same.
struct HotSpot {
  std::string layer;  // "head", "layers 0 to 31"
  v1::BufferClass buffer_class = v1::BUFFER_CLASS_UNSPECIFIED;
  int64_t bytes = 0;   // of all of them
  double share = 0;    // of what the tier holds then, 0 to 1
  std::string advice;  // "layout.zero: 3 shards it over ranks"; empty: the layout does it already
};
std::vector<HotSpot> HotSpots(const LayerMemory& memory, const v1::Layout& layout);

// Layers that follow each other and hold the same.
struct LayerGroup {
  std::string name;
  ByClass bytes{};         // of each of them
  int64_t most_bytes = 0;  // of each of them, at any instruction
  int64_t count = 1;
};
std::vector<LayerGroup> LayerGroups(const LayerMemory& memory);

// Of "train", at the peak of every stage and tier. INVALID_ARGUMENT when a program contradicts
// itself.
absl::StatusOr<std::vector<LayerMemory>> LayersOfPrograms(std::span<const v1::Program> programs);

// At the instruction that a rank's report names; none when it was made between executions, or by
// other programs.
absl::StatusOr<std::vector<LayerMemory>> LayersOfRank(const v1::RankMemory& rank,
                                                      std::span<const v1::Program> programs,
                                                      const v1::Layout& layout);

// `when` says of what the table is: "at the peak", "now".
std::string LayerText(std::span<const LayerMemory> memories, const v1::Layout& layout,
                      const std::string& when);
// {"layers": [...]}: one object a stage and tier, with its layers and hot spots. Ends with a
// newline.
std::string LayerJson(std::span<const LayerMemory> memories, const v1::Layout& layout);

}  // namespace terrace
