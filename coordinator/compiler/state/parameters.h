// The trainable memory of a stage: which part of which tensor lies where, with its optimizer state.
//
// Tensors whose products share their input (q, k, v; gate, up) lie side by side as one parameter,
// so that one product computes all of them. Checkpoints see single tensors (the state manifest).
//
// Tensor parallelism (Shoeybi et al. 2019, arXiv 1909.08053) splits the first product of a block by
// its outputs, the second by its inputs, tables by the vocabulary; ranks have the rest whole.
//
// Without ZeRO the parameters of a layer share one buffer a kind (weights, first_moment), norms
// and biases another where their weights are of another type than the matrices'. With it
// (Rajbhandari et al. 2020, arXiv 1910.02054) parameters of one kind form a unit, a region that all
// ranks of the "shard" group hold together: each has its own piece of master weights and moments,
// and the whole weights always (stage 1, 2 and small units of stage 3) or gathered for each use.
// Tensors that the optimizer updates as wholes are dealt, or kept by every rank (dealt.h).
//
// With layout.parameter_format bf16 or f16 matrices have 16 bits where passes read them (mixed
// precision, Micikevicius et al. 2017, arXiv 1710.03740), and the f32 master that they are rounded
// from lies with the moments. Products would round it so themselves, so no number changes; matrices
// of products in another precision stay as their masters are. What is frozen (TensorUpdate) has
// these weights only, whole on each rank that reads them whole; with layout.frozen_format those of
// layers are codes in blocks, decoded for each use (0035-frozen-weights-rest-in-blocks.md).
//
// There are the moments of a tensor's rule (proto/program/moments.h); factored rules keep matrices
// and vectors apart. With layout.moments_format bf16 or int8 those of matrices rest in that. Scales
// of blocks lie apart (docs/decisions/0021-blocks-of-moments-are-the-tensors.md).
//
// Off the device (tiers.h) rest a unit's moments, with its master where that is rounded or what is
// whole is gathered from it; and weights that are prefetched.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "coordinator/compiler/graph/graph.h"
#include "coordinator/compiler/state/groups.h"
#include "coordinator/compiler/state/precision.h"
#include "coordinator/layout/parameter_groups.h"
#include "coordinator/model/model.h"
#include "kernels/optimizer_rule.h"
#include "proto/program/moments.h"

namespace terrace::compiler {

// The rectangle of a tensor that this rank holds (v1::StateRange), in a parameter.
struct Part {
  const Tensor* tensor = nullptr;
  int64_t row = 0, rows = 0, column = 0, columns = 0;  // of tensor index 0
  v1::StateRange::Split split = v1::StateRange::WHOLE;
  int64_t offset = 0;  // elements from the parameter's first
  int64_t row_stride = 0;
};

// Over which groups a gradient is summed besides the data-parallel ones, and how many ranks of the
// group "model" hold the same elements.
struct Sums {
  bool tensor = false;        // each tensor-parallel rank has seen other tokens or heads
  bool tensor_block = false;  // or other queries of the same key-value head
  bool tied = false;          // another stage uses the weight as well
  int copies = 1;
  auto operator<=>(const Sums&) const = default;
};

// The outputs, or the inputs, of a product that a parameter holds the weights of (tiles.h).
struct Tile {
  int64_t begin = 0;
  int64_t size = 0;  // 0: all of them
  bool of_inputs = false;
};

// Values of the moments that the optimizer's rule keeps, the first before the second.
struct Moments {
  std::array<int, kernels::kMomentsMax> numbers = {kNone, kNone};
  std::array<int, kernels::kMomentsMax> scales = {kNone, kNone};  // of those in blocks
  // A factored rule has these, in the order of kFactorKinds. They are flat: those of a parameter's
  // parts lie one behind the other.
  std::array<int, kFactorKinds.size()> factors = {kNone, kNone, kNone, kNone};
};

struct Parameter {
  std::vector<Part> parts;
  Dims shape;  // of what this rank holds
  int layer = kNone;
  int chunk = 0;  // of the stage
  int split_block = 1;
  Sums sums;
  bool copy = false;                            // another stage owns it
  kernels::DType dtype = kernels::DType::kF32;  // of its weights as the optimizer updates them
  kernels::DType gradient = kernels::DType::kF32;
  Tile tile;
  int tiles = 1;        // so many parameters, this one first, are one product's matrix in order
  int weight = kNone;   // value; kNone when it is gathered for each use; codes where it has scales
  int scales = kNone;   // value, of those codes' blocks
  int rounded = kNone;  // what passes read instead, where it is rounded without ZeRO
  Moments moments;      // values of the same shape; none without an optimizer and with ZeRO
  TensorUpdate update;
  int unit = 0;
  int64_t offset = 0;  // elements from the unit's start

  const Tensor& first() const { return *parts[0].tensor; }
  std::string name() const;  // of the first tensor, and which tile of it
  // Or a table; else a norm or bias.
  bool is_matrix() const { return first().shape.size() >= 2; }
  // May rest off the device (tiers.h).
  bool streamed() const;
  int64_t elements() const;
};

// Counts the part's elements of a state that has one for each row, or one for each column.
int64_t FactorElements(const Part& part, v1::StateKind kind);

// Parameters whose memory is one region.
struct Unit {
  std::string name;
  std::vector<int> parameters;           // ascending
  int64_t elements = 0;                  // padding between parameters and at the end included
  int weights = kNone;                   // value; kNone when it is gathered for each use
  v1::Tier weight_tier = v1::DEVICE;     // where that rests which passes prefetch ...
  v1::Tier master_tier = v1::DEVICE;     // ... what the optimizer updates ...
  v1::Tier optimizer_tier = v1::DEVICE;  // ... and the moments
  // With ZeRO: this rank's piece, elements / shards of it; 0 where every rank keeps all.
  int64_t shard_elements = 0;
  int master = kNone;
  // The format of its weights where these rest as codes: then `weights` or `master` has the codes,
  // and this value the scales of their blocks.
  const kernels::FormatRow* codes = nullptr;
  int scales = kNone;
  // Each shard has one whole parameter, at its start, or none (dealt.h).
  bool dealt = false;
  // With ZeRO: every rank has and updates all of it.
  bool kept = false;
  // The copy of the master in `dtype` that lasts from step to step (with ZeRO this rank's piece of
  // it) and is rounded anew with each update. kNone when the whole weights are gathered once a step
  // from pieces that are rounded for that.
  int rounded = kNone;
  Moments moments;
  // Of `elements`, on each rank its own: what the codes that it has sent of its gradient were not
  // worth (layout.residual_format).
  int residual = kNone;
  Sums sums;
  bool of_matrices = true;  // else of norms and biases
  // With ZeRO that of all its parameters; without ZeRO only `frozen` and the rule are those of all.
  TensorUpdate update;
  kernels::DType dtype = kernels::DType::kF32;         // of its weights as passes read them
  kernels::DType master_dtype = kernels::DType::kF32;  // of those that the optimizer updates
  kernels::DType gradient = kernels::DType::kF32;
  kernels::DType moment_dtype = kernels::DType::kF32;  // of its moments as they rest
  bool tile = false;                                   // a tile of a matrix, alone

  bool rounds() const { return dtype != master_dtype; }
  bool sharded() const { return shard_elements > 0; }
  int64_t own_elements() const { return sharded() ? shard_elements : elements; }
  bool in_blocks() const { return moment_dtype == kernels::DType::kU8; }
};

// Blocks of `block` elements that hold so many, the last perhaps fewer.
constexpr int64_t BlocksOf(int64_t elements, int64_t block) {
  return (elements + block - 1) / block;
}

struct Dealt;

// Index of the chunk that uses the tensor; the number of chunks where none does.
int ChunkOf(const Tensor& tensor, const std::vector<ChunkRange>& chunks);

struct ParametersOptions {
  bool with_optimizer = true;
  v1::OptimizerSpec optimizer;
  int64_t persistent_elements = 0;  // ZeRO-3: smaller units stay whole
  v1::Offload offload;
  int64_t tile_bytes = 0;  // larger matrices that are prefetched for each use are tiled; 0: none
  // The type of the matrices that the optimizer updates. Norms and biases are always f32.
  kernels::DType matrices = kernels::DType::kF32;
  Precisions precisions;                            // of products
  bool round = false;                               // layout.parameter_format says so
  kernels::DType gradients = kernels::DType::kF32;  // of matrices; layout.gradient_format
  kernels::DType moments = kernels::DType::kF32;    // of matrices; layout.moments_format
  const kernels::FormatRow* gathers = nullptr;      // layout.gather_format; null: as they are read
  std::optional<kernels::DType> residuals;          // layout.residual_format
  int64_t moment_block = 0;                         // of moments in U8
  const kernels::FormatRow* frozen = nullptr;       // layout.frozen_format; null: as they are read
  int64_t frozen_block = 0;                         // of those
};

// Thread-compatible: plain data.
class Parameters {
 public:
  // Those of the given model chunks. Adds the values to `graph`. Borrows the model.
  Parameters(const Model& model, const std::vector<ChunkRange>& chunks, const Parallel& parallel,
             const ParametersOptions& options, Graph* graph);

  const std::vector<Parameter>& all() const { return all_; }
  const std::vector<Unit>& units() const { return units_; }
  // True where a tensor of the model, perhaps of another stage, is frozen.
  bool freezes() const { return freezes_; }
  // Whether the optimizer updates any that are shorter than f32.
  bool has_short() const { return matrices_ != kernels::DType::kF32; }
  // Elements of a moment in U8 that share a scale; 0: there are no such moments.
  int64_t moment_block() const { return moment_block_; }
  // These also answer for tensors of other stages: whether one is frozen, the type of its weights
  // in the state, and that of its moments.
  bool IsFrozen(const Tensor& tensor) const {
    return UpdateOf(optimizer_, model_.config, tensor).frozen;
  }
  kernels::OptimizerRule RuleOf(const Tensor& tensor) const {
    return UpdateOf(optimizer_, model_.config, tensor).rule;
  }
  kernels::DType WeightsOf(const Tensor& tensor) const;
  // The format in blocks in which the tensor rests, of frozen_block() elements each; null: as
  // WeightsOf says. Tables stay, of which a use reads a few rows, the head, and what an adapter has
  // of fewer columns than a block.
  const kernels::FormatRow* CodesOf(const Tensor& tensor) const {
    const bool of_layer = tensor.layer >= 0 && tensor.shape.size() >= 2;
    const bool whole = of_layer && frozen_ != nullptr && tensor.shape[1] % frozen_block_ == 0;
    return whole && IsFrozen(tensor) ? frozen_ : nullptr;
  }
  int64_t frozen_block() const { return frozen_block_; }
  kernels::DType MomentsOf(const Tensor& tensor) const {
    return tensor.shape.size() >= 2 && !IsFrozen(tensor) ? moments_ : kernels::DType::kF32;
  }
  // The type of the residual of the tensor's gradient, where there is one: not of a table that two
  // stages share, whose gradients differ. The tensor may be on another stage.
  std::optional<kernels::DType> ResidualOf(const Tensor& tensor) const;
  // How the weights of a unit travel that is gathered for each use: null as passes read them.
  const kernels::FormatRow* GathersOf(const Unit& unit) const {
    return unit.of_matrices && !unit.tile && unit.weights == kNone ? gathers_ : nullptr;
  }
  // False for a frozen weight, its gathered copy or its part.
  bool Trains(const Slice& weight, const Graph& graph) const {
    return !all_[graph.values[weight.value].parameter].update.frozen;
  }
  // Index of the parameter that starts with the tensor of this role; kNone when there is none.
  int Find(TensorRole role, int layer = kNone) const;

 private:
  void Group(const Model& model, const std::vector<ChunkRange>& chunks);
  void AddParameter(const Model& model, const Tensor& tensor, const std::vector<ChunkRange>& chunks,
                    bool copy, std::map<const Tensor*, bool>* taken);
  void MakeUnits(bool sharded, bool several_chunks, bool small_apart);
  std::vector<Dealt> DealAll() const;
  int AddUnit(const std::string& name, const Parameter& first, const Dealt& dealt, bool sharded);
  void CutIntoShards();
  std::string UpdateName(const Parameter& parameter);
  std::string WholeUnitName(const Parameter& parameter, bool small_apart) const;
  // That of most parameters.
  kernels::OptimizerRule UsualRule() const;
  bool Keeps(const Unit& unit, v1::StateKind kind) const;
  void ChooseTiers(const ParametersOptions& options);
  void ChooseTypes();
  // The type of the tensor as the optimizer updates it, and as passes read it where weights are
  // rounded.
  kernels::DType MasterOf(const Tensor& tensor) const;
  kernels::DType ReadAs(const Tensor& tensor) const;
  bool IsWhole(const Unit& unit) const;
  // Elements of whole pages of all types that a unit may have. `codes`: of its weights, or null.
  int64_t PageElements(kernels::DType master, const kernels::FormatRow* codes) const;
  // Parameters of a unit and shards of it begin at multiples of at least so many elements.
  int64_t AlignElements(const Unit& unit) const;
  void PlaceWeights(Unit* unit, Graph* graph);
  // Places weights that rest as codes, this rank's part of them.
  void PlaceCodes(Unit* unit, Graph* graph);
  void Place(bool sharded, const ParametersOptions& options, Graph* graph);
  // Places one of the moments of a unit, and the scales of its blocks if it has any.
  void PlaceMoment(int moment, Unit* unit, Graph* graph);
  void PlaceFactor(size_t factor, Unit* unit, Graph* graph);
  // Places the master, moments and residual of a unit with ZeRO.
  void PlaceShared(Unit* unit, Graph* graph);
  void PlaceStates(Unit* unit, Graph* graph);
  int AddRegion(const char* kind, v1::BufferClass cls, v1::Tier tier, const Unit& unit,
                kernels::DType dtype, int64_t elements, Graph* graph) const;
  // The region has the elements that this rank keeps.
  int AddWeights(const char* kind, v1::Tier tier, const Unit& unit, kernels::DType dtype,
                 Graph* graph) const;
  // `field` gives the member of a parameter that the value of its view is written to.
  void AddViews(absl::FunctionRef<int&(Parameter&)> field, const char* name, const Unit& unit,
                int region, Graph* graph);
  // As AddViews, flat, where `block` elements have one of the region's.
  void AddBlockViews(absl::FunctionRef<int&(Parameter&)> field, const char* name, const Unit& unit,
                     int64_t block, int region, Graph* graph);

  const Model& model_;
  const Parallel& parallel_;
  const int64_t tile_bytes_, persistent_elements_;
  const kernels::DType matrices_, gradients_;
  const Precisions precisions_;
  const bool rounds_, has_positions_, tied_;
  const v1::OptimizerSpec optimizer_;
  const bool freezes_;
  const bool with_optimizer_;
  const kernels::DType moments_;
  const int64_t moment_block_;
  const kernels::FormatRow* const gathers_;
  const std::optional<kernels::DType> residuals_;
  const kernels::FormatRow* const frozen_;
  const int64_t frozen_block_;
  std::vector<Parameter> all_;  // in the order of the forward pass
  std::vector<Unit> units_;
  std::vector<TensorUpdate> updates_;  // other than the usual ones
  std::map<std::pair<TensorRole, int>, int> by_role_;
};

}  // namespace terrace::compiler
