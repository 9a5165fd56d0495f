// SPDX-License-Identifier: Apache-2.0
// ReadCheckpoint: each rank copies what it holds out of the whole tensors.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/fill.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/safetensors/safetensors.h"
#include "worker/checkpoint/state_view.h"
#include "worker/checkpoint/stored_moment.h"
#include "worker/checkpoint/stored_state.h"
#include "worker/checkpoint/tensor_files.h"

namespace terrace {
namespace {

absl::Status NotOfThisModel(std::string_view path, const absl::Status& status) {
  if (!absl::IsNotFound(status)) return status;
  return absl::InvalidArgumentError(
      absl::StrCat(Absl(path), " is not a checkpoint of this model: ", status.message()));
}

std::map<std::string, const StateTensor*> WeightsOf(const std::vector<StateTensor>& tensors) {
  std::map<std::string, const StateTensor*> weights;
  for (const StateTensor& tensor : tensors) {
    if (tensor.kind == v1::WEIGHT) weights[tensor.tensor] = &tensor;
  }
  return weights;
}

// That moments are in another format than the job's, said once for all tensors.
class Conversion {
 public:
  void Note(const StoredMoment& stored, kernels::DType dtype, int64_t block) {
    if (stored.IsAs(dtype, block) || !from_.empty()) return;
    from_ = stored.FormatText();
    to_ = dtype == kernels::DType::kU8 ? absl::StrCat("int8 blocks of ", block)
                                       : std::string(kernels::Name(dtype));
  }
  void Tell(std::string_view path) const {
    if (from_.empty()) return;
    log::Info("the moments of matrices in ", std::string(path), " are in ", from_,
              " and were converted to ", to_, ", as formats.moments says");
  }

 private:
  std::string from_, to_;
};

// Residuals are those of as many ranks as the job has; of other ranks they are of no use.
class ResidualsRead {
 public:
  absl::Status Add(const absl::StatusOr<StoredTensor>& stored, const StateTensor& tensor,
                   StoredState* state) {
    if (stored.ok() && stored->shape == tensor.shape) return state->Add(*stored, tensor);
    if (lost_.empty()) lost_ = stored.ok() ? "are those of other ranks" : "are not there";
    state->AddZero();
    return absl::OkStatus();
  }
  void Tell(std::string_view path) const {
    if (lost_.empty()) return;
    log::Info("the residuals of gradients (formats.residual) in ", std::string(path), " ", lost_,
              " and begin at zero");
  }

 private:
  std::string lost_;
};

absl::Status Fill(std::string_view path, const RankState& state) {
  ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsReader> model,
                   SafetensorsReader::Open(PathIn(path, kModelFile)));
  ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsReader> optimizer,
                   SafetensorsReader::Open(PathIn(path, kOptimizerFile)));
  ASSIGN_OR_RETURN(const std::vector<StateTensor> tensors, ViewState(state));
  StoredState stored_state(path);
  Conversion conversion;
  ResidualsRead residuals;
  const std::map<std::string, const StateTensor*> weights = WeightsOf(tensors);
  const int64_t block = state.program.rules().moment_block();
  const kernels::OptimizerRow& rule = OptimizerOf(state.program);
  RETURN_IF_ERROR(CheckOptimizer(*optimizer, path, rule));
  for (const StateTensor& tensor : tensors) {
    if (tensor.kind == v1::RESIDUAL) {
      RETURN_IF_ERROR(residuals.Add(optimizer->Get(tensor.stored_name), tensor, &stored_state));
      continue;
    }
    if (tensor.kind != v1::WEIGHT) {
      const auto moment = StoredMoment::Find(*optimizer, path, tensor.tensor, MomentOf(tensor.kind),
                                             rule, weights.at(tensor.tensor)->shape);
      if (!moment.ok()) return NotOfThisModel(path, moment.status());
      stored_state.AddMoment(*moment, tensor, block);
      if (!IsScales(tensor.kind)) conversion.Note(*moment, tensor.dtype, block);
      continue;
    }
    const absl::StatusOr<StoredTensor> stored = model->Get(tensor.stored_name);
    if (!stored.ok()) return NotOfThisModel(path, stored.status());
    RETURN_IF_ERROR(stored_state.Add(*stored, tensor));
  }
  if (RankOf(state.program.grid(), state.rank) == 0) {
    conversion.Tell(path);
    residuals.Tell(path);
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
      .step = manifest->step, .tokens = manifest->tokens, .training = manifest->training};
}

}  // namespace terrace
