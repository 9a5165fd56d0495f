// Checkpoints on disk: a folder per step,
//
//   <directory>/step-00000200/
//     model.safetensors        weights, Hugging Face names, master precision
//     optimizer.safetensors    moments as they rest in the job, under the names of the optimizer's
//                              rule (StoredName): "<tensor>.adam_m", "<tensor>.adam_v"; with int8
//                              blocks "<tensor>.adam_m_scales" and "..._v_scales" too, with
//                              formats.residual "<tensor>.residual", all ranks' below each other
//     config.json, tokenizer files   so that the folder loads in `transformers`
//     manifest.json            step, tokens, seed, job spec; per file bytes and checksum; the last
//
// written under a temporary name, fsynced, renamed: a folder with the final name is complete. A
// kill at any instant leaves the previous ones intact; leftovers are removed by the next writer.
//
// The files hold whole tensors whatever the layout, so a checkpoint of one layout is resumed under
// any other. Each rank writes the parts it owns and reads the parts it holds, on whatever tier.
//
// Memory beside the state: about 1 MiB for a file that is verified; where a tier has no addresses
// 8 MiB of blocks (256 KiB a thread from 32 threads on); 72 bytes for each run of elements that lie
// together (one a tensor, or one a row where columns are cut). Nothing grows with the bytes held.
//
// Thread-compatible, except where said.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/program/grid.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/program.pb.h"
#include "worker/checkpoint/peers.h"
#include "worker/checkpoint/peft/saved_adapter.h"
#include "worker/checkpoint/training_state.h"
#include "worker/data/special_tokens.h"
#include "worker/data/token_sum.h"
#include "worker/memory/region.h"

namespace terrace {

struct CheckpointInfo {
  std::string path;
  int64_t step = 0;  // optimizer steps done
  int64_t tokens = 0;
  int64_t bytes = 0;
  int64_t unix_ms = 0;
  std::string job;
  ValidationState validation;  // as it was then
  bool complete = false;
  std::string problem;  // why not complete, for people
};

// Complete and incomplete ones, oldest step first. NOT_FOUND when the directory does not exist.
absl::StatusOr<std::vector<CheckpointInfo>> ListCheckpoints(std::string_view directory);
// Of one folder, whatever is there.
CheckpointInfo DescribeCheckpoint(const std::string& path);
// The newest complete one. NOT_FOUND when there is none.
absl::StatusOr<CheckpointInfo> NewestCheckpoint(std::string_view directory);

// The complete one of the best evaluation so far, as the newest complete one knows it, of which
// `validation` is. NOT_FOUND when there was no evaluation, or that checkpoint is not kept.
absl::StatusOr<CheckpointInfo> BestCheckpoint(std::string_view directory);

// The newest one whose every byte is as it was written.
struct WholeCheckpoint {
  CheckpointInfo info;
  std::vector<CheckpointInfo> passed_over;  // newer and damaged, newest first; `problem` says how
};
// NOT_FOUND when there are no checkpoints, DATA_LOSS when all are damaged: whether to begin anew is
// for a person to say.
absl::StatusOr<WholeCheckpoint> NewestWholeCheckpoint(std::string_view directory);

// What of a checkpoint is looked at.
enum class CheckpointFiles {
  kAll,
  kModel,   // all but the optimizer's states
  kBeside,  // what lies beside the tensors: config and tokenizer
};
// Reads every byte and compares sizes and checksums. DATA_LOSS names the file and what differs.
absl::Status VerifyCheckpoint(std::string_view path, CheckpointFiles files = CheckpointFiles::kAll);
// The same before weights are used; a folder that no job of ours wrote has no checksums and is OK.
absl::Status VerifyWeights(const std::string& path, CheckpointFiles files);

struct CheckpointHeader {
  int64_t step = 0;
  int64_t tokens = 0;
  TrainingState training;
  const v1::JobSpec* spec = nullptr;  // for writing; null in what ReadCheckpoint returns
  SpecialTokens special;              // for writing: the tokenizer's
  TokenSums data;                     // for writing: what the job is trained on
};

// One rank's part of the state: the program of its stage, its place in program.grid, its memory.
// Borrows all.
struct RankState {
  const v1::Program& program;
  Coordinates rank;
  std::span<Region* const> regions;  // by Arena.id
};

struct WriteOptions {
  uint32_t keep = 0;    // newest complete ones that stay; 0: all
  int64_t spared = -1;  // the step of one that stays besides
  int64_t unix_ms = 0;
  CheckpointPeers* peers = nullptr;  // the ranks that write this one together; null: only this one
  std::function<void()> on_read;     // called once this rank's state has been read; may be empty
};

// Writes one checkpoint of the persistent buffers together with all ranks of the job: each calls
// this with the same directory and header. Blocks: call it on a thread of its own while the buffers
// stay unchanged. All ranks return success, or all a failure and the temporary folder is removed:
// RESOURCE_EXHAUSTED on a full disk, PERMISSION_DENIED, ..., UNAVAILABLE when a rank is lost,
// OUT_OF_RANGE when a weight or a moment is not finite: no such state replaces a good one. Then
// removes old checkpoints and leftovers of killed writers. Returns the final path and bytes.
absl::StatusOr<CheckpointInfo> WriteCheckpoint(std::string_view directory,
                                               const CheckpointHeader& header,
                                               const RankState& state, const WriteOptions& options);

// Fills what the rank holds from a checkpoint folder (weights and optimizer state); padding becomes
// zero. Moments in another format than the job's are converted, which the log says, and residuals
// of other ranks become zero, which it says too. Together with `peers` when there are some. A
// failure of one is a failure of all. INVALID_ARGUMENT when a tensor is missing or has another
// shape, naming both sides. Does not compare checksums: VerifyCheckpoint does, once for all ranks.
absl::StatusOr<CheckpointHeader> ReadCheckpoint(std::string_view path, const RankState& state,
                                                CheckpointPeers* peers);

// What PEFT saved in `folder`, for the model of `program`. Fails as SavedAdapter::Open does.
absl::StatusOr<SavedAdapter> OpenAdapter(std::string_view folder, const v1::Program& program);

// How adapters begin. Borrows.
struct AdapterStart {
  int64_t seed = 0;                     // as InitialiseWeights lets them begin, unless ...
  const SavedAdapter* saved = nullptr;  // ... they are taken from there
};

// Fills the weights alone, from safetensors with the Hub's names (f32, bf16 or f16 are converted);
// optimizer state and padding become zero. Names without the base-model prefix ("h.0.attn..." for
// "transformer.h.0.attn...") are found as well. With `adapters` they begin so where
// the files have nothing of them; saved ones do in any case.
absl::Status ReadWeights(std::string_view path, const RankState& state,
                         const std::optional<AdapterStart>& adapters = {});

// Fills the weights by the program's initializers: a pure function of (seed, tensor name, element),
// whatever the layout; optimizer state and padding become zero.
absl::Status InitialiseWeights(int64_t seed, const RankState& state, int threads);

}  // namespace terrace
