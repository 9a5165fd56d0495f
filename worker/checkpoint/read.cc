// SPDX-License-Identifier: Apache-2.0
// ReadCheckpoint: each rank copies what it holds out of the whole tensors.
#include <functional>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/fill.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/state_view.h"
#include "worker/checkpoint/stored_state.h"
#include "worker/checkpoint/tensor_files.h"

namespace terrace {
namespace {

absl::Status Fill(std::string_view path, const RankState& state) {
  ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsReader> model,
                   SafetensorsReader::Open(PathIn(path, kModelFile)));
  ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsReader> optimizer,
                   SafetensorsReader::Open(PathIn(path, kOptimizerFile)));
  ASSIGN_OR_RETURN(const std::vector<StateTensor> tensors, ViewState(state));
  StoredState stored_state(path);
  for (const StateTensor& tensor : tensors) {
    const SafetensorsReader& reader = tensor.kind == v1::WEIGHT ? *model : *optimizer;
    const absl::StatusOr<StoredTensor> stored = reader.Get(tensor.stored_name);
    if (!stored.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(
          Absl(path), " is not a checkpoint of this model: ", stored.status().message()));
    }
    RETURN_IF_ERROR(stored_state.Add(*stored, tensor));
  }
  return FillState(state, tensors, /*threads=*/1,
                   std::bind_front(&StoredState::Get, &stored_state));
}

}  // namespace

absl::StatusOr<CheckpointHeader> ReadCheckpoint(std::string_view path, const RankState& state,
                                                CheckpointPeers* peers) {
  const absl::StatusOr<Manifest> manifest = ReadManifest(path);
  absl::Status own = manifest.status();
  if (own.ok()) own = Fill(path, state);
  ASSIGN_OR_RETURN(const std::vector<int64_t> agreed, Agree(peers, own, 0));
  return CheckpointHeader{
      .step = manifest->step, .tokens = manifest->tokens, .loss_scale = manifest->loss_scale};
}

}  // namespace terrace
