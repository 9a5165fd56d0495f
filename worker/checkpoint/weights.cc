// SPDX-License-Identifier: Apache-2.0
// ReadWeights: weights made elsewhere, under the names that the Hub's files use.
#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "proto/program/announced_weights.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/fill.h"
#include "worker/checkpoint/initial_state.h"
#include "worker/checkpoint/peft/names.h"
#include "worker/checkpoint/safetensors/safetensors.h"
#include "worker/checkpoint/state_view.h"
#include "worker/checkpoint/stored_state.h"
#include "worker/checkpoint/stored_weight.h"

namespace terrace {
namespace {

constexpr size_t kUnusedShown = 3;

// The names under which a file may hold `tensor`: its own, without the base model's prefix
// ("transformer.", "model.", "gpt_neox."), and those of the tensors tied to it.
std::vector<std::string> Aliases(const std::string& tensor, const v1::Program& program) {
  std::vector<std::string> names = {tensor};
  const size_t dot = tensor.find('.');
  const std::string prefix = tensor.substr(0, dot);
  if (dot != std::string::npos &&
      (prefix == "transformer" || prefix == "model" || prefix == "gpt_neox")) {
    names.push_back(tensor.substr(dot + 1));
  }
  std::set<std::string> tied;  // sorted: a map field has no order
  for (const auto& [alias, holder] : program.tied()) {
    if (holder == tensor) tied.insert(alias);
  }
  names.insert(names.end(), tied.begin(), tied.end());
  return names;
}

absl::StatusOr<StoredTensor> Find(const SafetensorsReader& reader, const std::string& tensor,
                                  const v1::Program& program) {
  absl::StatusOr<StoredTensor> first = reader.Get(tensor);
  if (!absl::IsNotFound(first.status())) return first;
  for (const std::string& name : Aliases(tensor, program)) {
    absl::StatusOr<StoredTensor> stored = reader.Get(name);
    if (!absl::IsNotFound(stored.status())) return stored;
  }
  return first;
}

// To leave out adapters would train another model than the one that was saved.
absl::Status CheckNoAdapterIsLeft(const std::vector<std::string>& unused, std::string_view path) {
  const auto found = std::find_if(unused.begin(), unused.end(), IsAdapterTensor);
  if (found == unused.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      Absl(path), " holds the adapter ", *found,
      ", which this job does not have; give model.lora the rank and the targets that it was "
      "trained with, or merge it into the weights first (terrace ckpt merge)"));
}

// A without B, or B without A, is no adapter. `begin` are those that the files do not have.
absl::Status CheckPairs(const std::set<std::string>& begin, const std::set<std::string>& stored,
                        std::string_view path) {
  for (const std::string& tensor : begin) {
    const bool is_a = tensor.ends_with(kLoraAEnding);
    const std::string other =
        absl::StrCat(*ModuleOf(tensor), Absl(is_a ? kLoraBEnding : kLoraAEnding));
    if (!stored.contains(other)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(Absl(path), " holds ", other,
                     " but not the other matrix of that adapter; use a "
                     "checkpoint that holds both, or weights without adapters"));
  }
  return absl::OkStatus();
}

// Masks and angles that files of earlier versions of transformers hold.
bool IsMadeAnew(std::string_view name) {
  return name.ends_with(".attention.bias") || name.ends_with(".attention.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

// "model.layers.#.mlp.up_proj.weight": the name of a tensor in any layer.
std::string InAnyLayer(std::string_view name) {
  std::vector<std::string> parts = absl::StrSplit(Absl(name), '.');
  for (std::string& part : parts) {
    if (int layer = 0; absl::SimpleAtoi(part, &layer)) {
      part = "#";
      break;
    }
  }
  return absl::StrJoin(parts, ".");
}

// Of the files, the tensors that no stage has: the initializers list those of all.
struct UnusedTensors {
  std::vector<std::string> names;
  bool of_layers = false;  // some are those of layers that the model does not have
};

UnusedTensors Unused(const SafetensorsReader& reader, const v1::Program& program) {
  std::set<std::string> used, layers;
  for (const v1::Initializer& initializer : program.initializers()) {
    const auto stored = Find(reader, initializer.tensor(), program);
    if (!stored.ok()) continue;
    used.insert(stored->name);
    layers.insert(InAnyLayer(stored->name));
  }
  UnusedTensors unused;
  for (const std::string& name : reader.Names()) {
    if (used.contains(name) || program.tied().contains(name) || AreScalesOfCodes(reader, name) ||
        IsMadeAnew(name))
      continue;
    unused.of_layers |= layers.contains(InAnyLayer(name));
    unused.names.push_back(name);
  }
  return unused;
}

// A model with fewer layers than the files loads without an error, so say what was left.
void WarnOfUnused(UnusedTensors unused, std::string_view path) {
  if (unused.names.empty()) return;
  const size_t count = unused.names.size();
  unused.names.resize(std::min(count, kUnusedShown));
  log::Warn(count == 1 ? "a tensor" : absl::StrCat(count, " tensors"), " of ", std::string(path),
            count == 1 ? " is" : " are",
            " not in the model and not read: ", absl::StrJoin(unused.names, ", "),
            count > kUnusedShown ? ", ..." : "",
            unused.of_layers ? "; the model has fewer layers than these weights" : "");
}

}  // namespace

absl::StatusOr<SavedAdapter> OpenAdapter(std::string_view folder, const v1::Program& program) {
  std::vector<SavedAdapter::Expected> expected;
  for (const v1::Initializer& initializer : program.initializers()) {
    if (!initializer.adapter()) continue;
    expected.push_back(
        {initializer.tensor(), {initializer.shape().begin(), initializer.shape().end()}});
  }
  return SavedAdapter::Open(folder, expected);
}

absl::Status ReadWeights(std::string_view path, const RankState& state,
                         const std::optional<AdapterStart>& adapters) {
  ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsReader> reader, SafetensorsReader::Open(path));
  ASSIGN_OR_RETURN(const std::vector<StateTensor> tensors, ViewState(state));
  const std::map<std::string, AnnouncedWeight> announced = AnnouncedByName(state.program);
  StoredState stored_state(path);
  InitialState initial(adapters.has_value() ? adapters->seed : 0, state.program);
  std::vector<bool> begins(tensors.size(), false);
  std::set<std::string> without, with;  // adapters' tensors
  for (size_t i = 0; i < tensors.size(); ++i) {
    const StateTensor& tensor = tensors[i];
    if (tensor.kind != v1::WEIGHT) {
      stored_state.AddZero();
      initial.AddZero();
      continue;
    }
    const auto found = announced.find(tensor.tensor);
    const AnnouncedWeight* const weight = found == announced.end() ? nullptr : &found->second;
    const std::string& name = weight == nullptr ? tensor.tensor : weight->initializer->tensor();
    const bool is_adapter = adapters.has_value() && initial.IsAdapter(tensor);
    const absl::StatusOr<StoredTensor> stored = is_adapter && adapters->saved != nullptr
                                                    ? adapters->saved->Get(name)
                                                    : Find(*reader, name, state.program);
    begins[i] = is_adapter && absl::IsNotFound(stored.status());
    if (is_adapter) (begins[i] ? without : with).insert(tensor.tensor);
    if (begins[i]) {
      stored_state.AddZero();
      RETURN_IF_ERROR(initial.Add(tensor));
      continue;
    }
    initial.AddZero();
    if (!stored.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(
          Absl(path), " does not hold the weights of this model: ", stored.status().message()));
    }
    ASSIGN_OR_RETURN(const StoredWeight read, StoredWeight::Of(*reader, path, *stored));
    RETURN_IF_ERROR(stored_state.AddWeight(read, tensor, weight));
  }
  RETURN_IF_ERROR(CheckPairs(without, with, path));
  UnusedTensors unused = Unused(*reader, state.program);
  if (adapters.has_value()) RETURN_IF_ERROR(CheckNoAdapterIsLeft(unused.names, path));
  const auto get = [&](size_t tensor, int64_t begin, std::span<std::byte> to) {
    return begins[tensor] ? initial.Get(tensor, begin, to) : stored_state.Get(tensor, begin, to);
  };
  RETURN_IF_ERROR(FillState(state, tensors, /*threads=*/1, get));
  if (RankOf(state.program.grid(), state.rank) == 0) WarnOfUnused(std::move(unused), path);
  return absl::OkStatus();
}

}  // namespace terrace
