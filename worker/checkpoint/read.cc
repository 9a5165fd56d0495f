// SPDX-License-Identifier: Apache-2.0
// ReadCheckpoint: each rank copies what it holds out of the whole tensors.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "proto/program/announced_weights.h"
#include "proto/program/moments.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/fill.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/safetensors/safetensors.h"
#include "worker/checkpoint/state_view.h"
#include "worker/checkpoint/stored_moment.h"
#include "worker/checkpoint/stored_state.h"
#include "worker/checkpoint/stored_weight.h"
#include "worker/checkpoint/tensor_files.h"

namespace terrace {
namespace {

absl::Status NotOfThisModel(std::string_view path, const absl::Status& status) {
  if (!absl::IsNotFound(status)) return status;
  return absl::InvalidArgumentError(
      absl::StrCat(Absl(path), " is not a checkpoint of this model: ", status.message()));
}

// Moments from zero would make its first updates several times too large.
// `stored`: the rule by which the tensor was updated; null: it was frozen.
absl::Status NoMoments(std::string_view path, const std::string& tensor,
                       const kernels::OptimizerRow* stored, const kernels::OptimizerRow& own) {
  if (stored == &own) {
    return absl::InvalidArgumentError(absl::StrCat(
        Absl(path), ": has no first moment of ", tensor, ", which ", Absl(own.name),
        " keeps where train.optimizer.beta1 is above 0. Resume with train.optimizer.beta1 as it "
        "was, or begin with the weights alone: model.init ",
        Absl(path), "/", kModelFile, " and another checkpoint.directory"));
  }
  const std::string why = stored == nullptr
                              ? absl::StrCat("but no optimizer states: ", tensor, " was frozen")
                              : absl::StrCat("and the optimizer states of ", Absl(stored->name),
                                             ", by which ", tensor, " was updated");
  return absl::InvalidArgumentError(absl::StrCat(
      Absl(path), ": has the weights of ", tensor, ", ", why,
      ". Resume with train.optimizer.groups as it was, or begin with the weights alone: "
      "model.init ",
      Absl(path), "/", kModelFile, " and another checkpoint.directory"));
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

// That frozen weights are in other blocks than the job's, or in none, said once for all tensors.
class WeightConversion {
 public:
  void Note(const StoredWeight& stored, const AnnouncedWeight* announced) {
    if (announced == nullptr || announced->part == AnnouncedWeight::Part::kScales) return;
    const CodeFormat codes = CodesOf(*announced->initializer);
    if (stored.IsAs(codes) || !from_.empty()) return;
    from_ = stored.FormatText();
    to_ = codes.row == nullptr ? std::string(kernels::Name(announced->dtype))
                               : absl::StrCat(Absl(codes.row->name), " blocks of ", codes.block);
  }
  void Tell(std::string_view path) const {
    if (from_.empty()) return;
    log::Info("frozen weights in ", std::string(path), " are in ", from_, " and were converted to ",
              to_, ", as formats.frozen and train.optimizer.groups say");
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

// By which rule the file's moments of the tensor came about, as far as their names say; null: there
// are none.
const kernels::OptimizerRow* StoredRule(const SafetensorsReader& optimizer,
                                        const std::string& tensor) {
  for (const kernels::OptimizerRow& rule : kernels::kOptimizerRows) {
    for (const bool matrix : {true, false}) {
      const std::vector<v1::StateKind> kinds = MomentKinds(rule, matrix, /*averages=*/false);
      if (!kinds.empty() && optimizer.Get(StoredName(tensor, kinds[0], rule)).ok()) return &rule;
    }
  }
  return nullptr;
}

// The next checkpoint will be without them.
void TellOfUnusedMoments(const SafetensorsReader& optimizer, const v1::Program& program,
                         std::string_view path) {
  const auto unused = [&](const v1::Initializer& initializer) {
    return initializer.frozen() && StoredRule(optimizer, initializer.tensor()) != nullptr;
  };
  const int64_t count =
      std::count_if(program.initializers().begin(), program.initializers().end(), unused);
  if (count > 0)
    log::Info("the optimizer states of ", count, " tensors in ", std::string(path),
              " are not used: train.optimizer.groups freezes these now, and they rest as ",
              "formats.parameter says");
}

absl::Status Fill(std::string_view path, const RankState& state) {
  ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsReader> model,
                   SafetensorsReader::Open(PathIn(path, kModelFile)));
  ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsReader> optimizer,
                   SafetensorsReader::Open(PathIn(path, kOptimizerFile)));
  ASSIGN_OR_RETURN(const std::vector<StateTensor> tensors, ViewState(state));
  StoredState stored_state(path);
  Conversion conversion;
  int64_t rounded = 0;  // weights
  WeightConversion of_weights;
  const std::map<std::string, AnnouncedWeight> announced = AnnouncedByName(state.program);
  ResidualsRead residuals;
  const std::map<std::string, const StateTensor*> weights = WeightsOf(tensors);
  const int64_t block = state.program.rules().moment_block();
  const TensorRules rules(state.program);
  RETURN_IF_ERROR(CheckOptimizer(*optimizer, path, OptimizerOf(state.program)));
  for (const StateTensor& tensor : tensors) {
    if (tensor.kind == v1::RESIDUAL) {
      RETURN_IF_ERROR(residuals.Add(optimizer->Get(tensor.stored_name), tensor, &stored_state));
      continue;
    }
    if (tensor.kind != v1::WEIGHT) {
      const kernels::OptimizerRow& rule = rules.Of(tensor.tensor);
      const auto moment =
          StoredMoment::Find(*optimizer, path, tensor.tensor, MomentOf(tensor.kind), rule,
                             MomentShape(tensor.kind, weights.at(tensor.tensor)->shape));
      if (absl::IsNotFound(moment.status()) && model->Get(tensor.tensor).ok()) {
        return NoMoments(path, tensor.tensor, StoredRule(*optimizer, tensor.tensor), rule);
      }
      if (!moment.ok()) return NotOfThisModel(path, moment.status());
      stored_state.AddMoment(*moment, tensor, block);
      if (!IsScales(tensor.kind)) conversion.Note(*moment, tensor.dtype, block);
      continue;
    }
    const auto found = announced.find(tensor.tensor);
    const AnnouncedWeight* const weight = found == announced.end() ? nullptr : &found->second;
    const absl::StatusOr<StoredTensor> stored =
        model->Get(weight == nullptr ? tensor.stored_name : weight->initializer->tensor());
    if (!stored.ok()) return NotOfThisModel(path, stored.status());
    ASSIGN_OR_RETURN(const StoredWeight read, StoredWeight::Of(*model, path, *stored));
    RETURN_IF_ERROR(stored_state.AddWeight(read, tensor, weight));
    const bool codes = read.dtype() == kernels::DType::kU8 || tensor.dtype == kernels::DType::kU8;
    if (!codes && kernels::SizeOf(read.dtype()) > kernels::SizeOf(tensor.dtype)) ++rounded;
    of_weights.Note(read, weight);
  }
  if (RankOf(state.program.grid(), state.rank) == 0) {
    TellOfUnusedMoments(*optimizer, state.program, path);
    conversion.Tell(path);
    // What is trained has masters that keep all bits.
    if (rounded > 0)
      log::Info("the weights of ", rounded, " frozen tensors in ", std::string(path),
                " have more bits than formats.parameter gives them and were rounded");
    of_weights.Tell(path);
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
