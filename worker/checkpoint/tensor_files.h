// The tensor files of a checkpoint: what they hold follows from the program's initializers alone,
// which list every tensor of the model whatever the stage, so all ranks know the same files.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/program/announced_weights.h"
#include "proto/v1/program.pb.h"
#include "worker/checkpoint/safetensors/safetensors.h"
#include "worker/checkpoint/state_view.h"

namespace terrace {

inline constexpr char kModelFile[] = "model.safetensors";
inline constexpr char kOptimizerFile[] = "optimizer.safetensors";

inline constexpr size_t kTensorFiles = 2;

struct TensorFile {
  std::string name;
  std::vector<TensorToWrite> tensors;
  std::string optimizer;     // of moments: the rule that they belong to
  int64_t moment_block = 0;  // of moments in int8 blocks: elements that share a scale
  CodeFormat frozen;         // of frozen weights in blocks
};

// The weights in the model's order, and their moments and scales with the residuals of all ranks;
// of both those in f32 before those in fewer bits.
std::array<TensorFile, kTensorFiles> TensorFilesOf(const v1::Program& program);
// The name of the file that holds tensors of this kind.
std::string_view FileOfKind(v1::StateKind kind);

absl::StatusOr<SafetensorsWriter> CreateTensorFile(std::string_view folder, const TensorFile& file);
absl::StatusOr<SafetensorsWriter> JoinTensorFile(std::string_view folder, const TensorFile& file);

}  // namespace terrace
