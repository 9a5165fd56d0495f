// Checkpoints on disk: a folder per step,
//
//   <directory>/step-00000200/
//     model.safetensors        weights, Hugging Face names, master precision
//     optimizer.safetensors    "<tensor>.adam_m", "<tensor>.adam_v"
//     config.json, tokenizer files   so that the folder loads in `transformers`
//     manifest.json            step, tokens, seed, job spec; per file bytes and XXH3; written last
//
// written under a temporary name, fsynced, renamed: a folder with the final name is complete. A
// kill at any instant leaves the previous ones intact; leftovers are removed by the next writer.
//
// Thread-compatible, except where said.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/program.pb.h"

namespace terrace {

struct CheckpointInfo {
  std::string path;
  int64_t step = 0;  // optimizer steps done
  int64_t tokens = 0;
  int64_t bytes = 0;
  int64_t unix_ms = 0;
  std::string job;
  bool complete = false;
  std::string problem;  // why not complete, for people
};

// Complete and incomplete ones, oldest step first. NOT_FOUND when the directory does not exist.
absl::StatusOr<std::vector<CheckpointInfo>> ListCheckpoints(std::string_view directory);
// The newest complete one. NOT_FOUND when there is none.
absl::StatusOr<CheckpointInfo> NewestCheckpoint(std::string_view directory);
// Reads every byte and compares sizes and checksums. DATA_LOSS names the file and what differs.
absl::Status VerifyCheckpoint(std::string_view path);

struct CheckpointHeader {
  int64_t step = 0;
  int64_t tokens = 0;
  const v1::JobSpec* spec = nullptr;  // for writing; null in what ReadCheckpoint returns
};

// Writes one checkpoint from the persistent buffers of a rank that holds whole tensors. Blocks:
// call it on a thread of its own while the buffers stay unchanged. Then removes all but the newest
// `keep` complete ones (0: none are removed) and leftovers of killed writers. Returns the final
// path and bytes. RESOURCE_EXHAUSTED on a full disk, PERMISSION_DENIED, ...; the temporary folder
// is removed then.
absl::StatusOr<CheckpointInfo> WriteCheckpoint(std::string_view directory,
                                               const CheckpointHeader& header,
                                               const v1::Program& program,
                                               std::span<std::byte* const> arenas, uint32_t keep,
                                               int64_t unix_ms);

// Fills the persistent buffers from a checkpoint folder (weights and optimizer state).
// INVALID_ARGUMENT when a tensor is missing or has another shape, naming both sides.
absl::StatusOr<CheckpointHeader> ReadCheckpoint(std::string_view path, const v1::Program& program,
                                                std::span<std::byte* const> arenas);

// Fills the weights alone, from safetensors with the Hub's names (f32, bf16 or f16 are converted);
// optimizer state becomes zero. Names without the base-model prefix ("h.0.attn..." for
// "transformer.h.0.attn...") are found as well.
absl::Status ReadWeights(std::string_view path, const v1::Program& program,
                         std::span<std::byte* const> arenas);

// Fills the weights by the program's initializers: a pure function of (seed, tensor name, element),
// whatever the layout.
absl::Status InitialiseWeights(int64_t seed, const v1::Program& program,
                               std::span<std::byte* const> arenas, int threads);

// Writes a folder that AutoModelForCausalLM.from_pretrained loads: model.safetensors in `dtype`
// ("f32", "bf16", "f16"), config.json, tokenizer files. Atomic like a checkpoint.
absl::Status ExportCheckpoint(std::string_view checkpoint, std::string_view output,
                              std::string_view dtype);

}  // namespace terrace
