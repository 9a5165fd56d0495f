// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/state/parameters.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "coordinator/compiler/state/dealt.h"
#include "coordinator/compiler/state/partition.h"
#include "coordinator/compiler/state/tiles.h"
#include "coordinator/compiler/tiers/tiers.h"
#include "coordinator/layout/formats.h"
#include "kernels/format.h"
#include "proto/program/state_layout.h"

namespace terrace::compiler {
namespace {

// Every parameter starts on a cache line.
constexpr int64_t kAlignElements = 64 / sizeof(float);

int64_t AlignUp(int64_t elements, int64_t alignment) {
  return (elements + alignment - 1) / alignment * alignment;
}

// What buffers of moments are called, and the views of parameters in them.
constexpr const char* kMomentNames[] = {"first_moment", "second_moment"};
constexpr const char* kScalesNames[] = {"first_moment_scales", "second_moment_scales"};
constexpr const char* kFactorNames[] = {"row_moment", "column_moment", "row_error", "column_error"};

// Weights that are prefetched to the device for each use, and are not shared by products.
bool MayTile(const Parallel& parallel, const ParametersOptions& options) {
  if (parallel.tensor() > 1) return false;
  return parallel.zero == 3 || (parallel.zero == 0 && OffDevice(options.offload.parameter()));
}

std::string UnitName(const Parameter& parameter) {
  if (parameter.layer != kNone) return absl::StrCat("layer", parameter.layer);
  if (parameter.tile.begin > 0) return absl::StrCat("head.tile", parameter.tile.begin);
  switch (parameter.first().role) {
    case TensorRole::kTokenEmbedding:
    case TensorRole::kPositionEmbedding:
    case TensorRole::kEmbeddingNorm:
    case TensorRole::kEmbeddingNormBias:
      return parameter.copy ? "tied" : "embedding";
    default:
      return "head";
  }
}

// Sharded, parameters may share a region only when their gradients take the same way and the
// optimizer treats them alike. Norms and biases of all layers of a chunk are one unit: alone they
// would be many small messages.
std::string ShardedUnitName(const Parameter& parameter, bool several_chunks) {
  std::string name = parameter.is_matrix() ? UnitName(parameter) : "vectors";
  if (parameter.tile.size > 0) return parameter.name();
  if (!parameter.is_matrix() && several_chunks) absl::StrAppend(&name, ".chunk", parameter.chunk);
  if (parameter.first().role == TensorRole::kPositionEmbedding) name = "positions";
  if (parameter.sums.tensor) {
    name += ".summed";
  } else if (parameter.sums.tensor_block) {
    name += ".kv";
  } else if (!parameter.is_matrix() && parameter.sums.copies > 1) {
    name += ".whole";  // the others hold shares
  }
  return name;
}

}  // namespace

int ChunkOf(const Tensor& tensor, const std::vector<ChunkRange>& chunks) {
  const bool embedding = IsOfEmbedding(tensor.role);
  const auto it = std::find_if(chunks.begin(), chunks.end(), [&](const ChunkRange& chunk) {
    if (tensor.layer >= 0) return tensor.layer >= chunk.begin && tensor.layer < chunk.end;
    return embedding ? chunk.first : chunk.last;
  });
  return static_cast<int>(it - chunks.begin());
}

int64_t FactorElements(const Part& part, v1::StateKind kind) {
  return kind == v1::ROW_MOMENT || kind == v1::ROW_ERROR ? part.rows : part.columns;
}

int64_t Parameter::elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::string Parameter::name() const {
  return tile.size > 0 ? absl::StrCat(first().name, ".tile", tile.begin) : first().name;
}

bool Parameter::streamed() const { return is_matrix() && elements() >= StreamedElements(dtype); }

Parameters::Parameters(const Model& model, const std::vector<ChunkRange>& chunks,
                       const Parallel& parallel, const ParametersOptions& options, Graph* graph)
    : model_(model),
      parallel_(parallel),
      tile_bytes_(MayTile(parallel, options) ? options.tile_bytes : 0),
      persistent_elements_(options.persistent_elements),
      matrices_(options.matrices),
      gradients_(options.gradients),
      precisions_(options.precisions),
      rounds_(options.round),
      has_positions_(model.Find(TensorRole::kPositionEmbedding) != nullptr),
      tied_(model.config.tied_embeddings),
      optimizer_(options.optimizer),
      freezes_(FrozenParameters(options.optimizer, model) > 0),
      with_optimizer_(options.with_optimizer),
      moments_(with_optimizer_ ? options.moments : kernels::DType::kF32),
      moment_block_(moments_ == kernels::DType::kU8 ? options.moment_block : 0),
      gathers_(options.gathers),
      residuals_(options.with_optimizer && parallel.zero > 0 ? options.residuals : std::nullopt),
      frozen_(options.frozen),
      frozen_block_(options.frozen_block) {
  const bool sharded = parallel.zero > 0;
  Group(model, chunks);
  MakeUnits(sharded, chunks.size() > 1, OffDevice(options.offload));
  ChooseTypes();
  ChooseTiers(options);
  Place(sharded, options, graph);
}

void Parameters::Group(const Model& model, const std::vector<ChunkRange>& chunks) {
  const auto on = [&](auto predicate) {
    return std::any_of(chunks.begin(), chunks.end(), predicate);
  };
  const bool first = on([](const ChunkRange& chunk) { return chunk.first; });
  const bool last = on([](const ChunkRange& chunk) { return chunk.last; });
  std::map<const Tensor*, bool> taken;
  for (const Tensor& tensor : model.tensors) {
    if (taken[&tensor]) continue;
    if (tensor.layer >= 0) {
      const bool here = on([&](const ChunkRange& chunk) {
        return tensor.layer >= chunk.begin && tensor.layer < chunk.end;
      });
      if (here) AddParameter(model, tensor, chunks, /*copy=*/false, &taken);
      continue;
    }
    const bool embedding = IsOfEmbedding(tensor.role);
    const bool tied = tensor.role == TensorRole::kTokenEmbedding && model.config.tied_embeddings;
    if (embedding ? first : last) AddParameter(model, tensor, chunks, /*copy=*/false, &taken);
    if (tied && last && !first) AddParameter(model, tensor, chunks, /*copy=*/true, &taken);
  }
}

void Parameters::AddParameter(const Model& model, const Tensor& tensor,
                              const std::vector<ChunkRange>& chunks, bool copy,
                              std::map<const Tensor*, bool>* taken) {
  Parameter parameter = {
      .layer = static_cast<int>(tensor.layer), .chunk = ChunkOf(tensor, chunks), .copy = copy};
  std::vector<const Tensor*> tensors = {&tensor};
  for (TensorRole role : StoredWith(tensor.role, parallel_)) {
    const Tensor* next = model.Find(role, tensor.layer);
    if (next == nullptr) continue;
    tensors.push_back(next);
    (*taken)[next] = true;
  }
  Partition(model.config, tensors, parallel_, &parameter);
  parameter.update = UpdateOf(optimizer_, model.config, tensor);
  parameter.dtype = WeightsOf(tensor);
  if (parameter.is_matrix()) parameter.gradient = gradients_;
  by_role_[{tensor.role, parameter.layer}] = static_cast<int>(all_.size());
  if (tile_bytes_ == 0 || !IsTiled(tensor.role) || CodesOf(tensor) != nullptr) {
    all_.push_back(std::move(parameter));
    return;
  }
  for (Parameter& tile : CutIntoTiles(model.config, parameter, tile_bytes_))
    all_.push_back(std::move(tile));
}

std::string Parameters::WholeUnitName(const Parameter& parameter, bool small_apart) const {
  std::string name = UnitName(parameter);
  const bool apart = rounds_ || matrices_ != kernels::DType::kF32 ||
                     moments_ != kernels::DType::kF32 ||
                     kernels::RowOf(parameter.update.rule).factored;
  if (apart && !parameter.is_matrix()) {
    name += ".vectors";
  } else if (small_apart && !parameter.streamed()) {
    name += ".small";
  }
  const kernels::OptimizerRule rule = parameter.update.rule;
  if (rule == UsualRule() || parameter.update.frozen) return name;
  return absl::StrCat(name, ".", Absl(kernels::RowOf(rule).name));
}

kernels::OptimizerRule Parameters::UsualRule() const {
  const kernels::OptimizerRow* row = kernels::FindOptimizer(OptimizerName(optimizer_));
  return row == nullptr ? kernels::OptimizerRule::kAdamw : row->rule;
}

bool Parameters::Keeps(const Unit& unit, v1::StateKind kind) const {
  if (!with_optimizer_ || unit.update.frozen) return false;
  const std::vector<v1::StateKind> kinds =
      MomentKinds(kernels::RowOf(unit.update.rule), unit.of_matrices, optimizer_.beta1() > 0);
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

// Parameters that are updated differently lie in different units, and this ending of the name keeps
// these apart. It is empty for the usual update. Two stages may use one ending for two updates.
std::string Parameters::UpdateName(const Parameter& parameter) {
  if (CodesOf(parameter.first()) != nullptr) return ".codes";
  if (parameter.update.frozen) return ".frozen";
  const TensorUpdate usual = {.weight_decay = parameter.is_matrix() ? optimizer_.weight_decay() : 0,
                              .rule = UsualRule()};
  if (parameter.update == usual) return "";
  const auto found = std::find(updates_.begin(), updates_.end(), parameter.update);
  const auto index = found - updates_.begin();
  if (found == updates_.end()) updates_.push_back(parameter.update);
  return absl::StrCat(".update", index + 1);
}

// Those that are updated as wholes are in units that say it.
std::vector<Dealt> Parameters::DealAll() const {
  return DealParameters(all_, parallel_.shards(), /*by_chunk=*/parallel_.zero > 1,
                        [this](const Parameter& parameter) { return ReadAs(parameter.first()); });
}

int Parameters::AddUnit(const std::string& name, const Parameter& first, const Dealt& dealt,
                        bool sharded) {
  units_.push_back({.name = name,
                    .codes = CodesOf(first.first()),
                    .dealt = dealt.leader != kNone,
                    .kept = dealt.whole && dealt.leader == kNone,
                    .sums = first.sums,
                    .of_matrices = first.is_matrix(),
                    .update = first.update,
                    .dtype = first.dtype,
                    .master_dtype = first.dtype,
                    .gradient = first.gradient,
                    .moment_dtype = first.is_matrix() ? moments_ : kernels::DType::kF32,
                    .tile = sharded && first.tile.size > 0});
  return static_cast<int>(units_.size()) - 1;
}

void Parameters::MakeUnits(bool sharded, bool several_chunks, bool small_apart) {
  std::map<std::string, int> by_name;
  const std::vector<Dealt> dealt = sharded ? DealAll() : std::vector<Dealt>(all_.size());
  for (int i = 0; i < static_cast<int>(all_.size()); ++i) {
    Parameter& parameter = all_[i];
    const bool is_dealt = dealt[i].leader != kNone;
    std::string name = is_dealt  ? absl::StrCat("dealt.", all_[dealt[i].leader].name())
                       : sharded ? ShardedUnitName(parameter, several_chunks)
                                 : WholeUnitName(parameter, small_apart);
    if (dealt[i].whole && !is_dealt) name += ".kept";
    // A unit has one type.
    const bool exact = ReadAs(parameter.first()) == MasterOf(parameter.first());
    if (rounds_ && parameter.layer != kNone && parameter.is_matrix() && exact) name += ".exact";
    if (sharded || parameter.update.frozen) name += UpdateName(parameter);
    const auto [it, is_new] = by_name.try_emplace(name, 0);
    if (is_new) it->second = AddUnit(name, parameter, dealt[i], sharded);
    Unit& unit = units_[it->second];
    parameter.unit = it->second;
    unit.parameters.push_back(i);
    if (is_dealt) {
      unit.shard_elements = AlignUp(parameter.elements(), kAlignElements);
      unit.elements = unit.shard_elements * parallel_.shards();
      parameter.offset = unit.shard_elements * dealt[i].shard;
      continue;
    }
    parameter.offset = AlignUp(unit.elements, !sharded && parameter.streamed()
                                                  ? PageElements(parameter.dtype, unit.codes)
                                                  : AlignElements(unit));
    unit.elements = parameter.offset + parameter.elements();
  }
  if (sharded) CutIntoShards();
}

void Parameters::CutIntoShards() {
  for (Unit& unit : units_) {
    if (unit.dealt || unit.kept || (unit.update.frozen && IsWhole(unit))) continue;
    const int64_t shards = parallel_.shards();
    const int64_t share = (unit.elements + shards - 1) / shards;
    const int64_t page = PageElements(unit.master_dtype, unit.codes);
    unit.shard_elements =
        AlignUp(share, unit.of_matrices && share >= page ? page : AlignElements(unit));
    unit.elements = unit.shard_elements * shards;
  }
}

// With ZeRO where shards end decides in which order ranks sum, so that it does not depend on what
// is rounded or rests elsewhere.
int64_t Parameters::PageElements(kernels::DType master, const kernels::FormatRow* codes) const {
  const bool both = parallel_.zero > 0 || rounds_;
  return std::max({StreamedElements(master), StreamedElements(moments_),
                   StreamedElements(gradients_), both ? StreamedElements(precisions_.rounded) : 0,
                   codes != nullptr ? StreamedElements(kernels::DType::kU8) * codes->packed : 0});
}

int64_t Parameters::AlignElements(const Unit& unit) const {
  const bool blocks = unit.of_matrices && (moment_block_ > 0 || unit.codes != nullptr);
  return blocks ? std::max(kAlignElements, kernels::kInt8Block) : kAlignElements;
}

bool Parameters::IsWhole(const Unit& unit) const {
  return parallel_.zero < 3 || !unit.of_matrices || unit.elements < persistent_elements_;
}

// Master weights that passes do not read rest with the moments.
void Parameters::ChooseTiers(const ParametersOptions& options) {
  TierChooser optimizer(options.offload.optimizer()), parameter(options.offload.parameter());
  for (Unit& unit : units_) {
    const Parameter& first = all_[unit.parameters[0]];
    const int64_t elements = unit.own_elements();
    const bool streamed =
        unit.sharded() ? unit.shard_elements % PageElements(unit.master_dtype, unit.codes) == 0 &&
                             unit.of_matrices
                       : first.streamed();
    // Weights that ZeRO leaves whole on every rank stay on the device.
    if (!streamed || (parallel_.zero > 0 && !unit.sharded())) continue;
    const bool whole = unit.sharded() && IsWhole(unit);
    if (!unit.update.frozen) unit.optimizer_tier = optimizer.Next(elements);
    unit.weight_tier = whole ? unit.optimizer_tier : parameter.Next(elements);
    unit.master_tier = unit.rounds() ? unit.optimizer_tier : unit.weight_tier;
    // The page that the last parameter ends on.
    const bool leaves = unit.optimizer_tier != v1::DEVICE || unit.weight_tier != v1::DEVICE;
    if (leaves && !unit.sharded())
      unit.elements = AlignUp(unit.elements, PageElements(unit.master_dtype, unit.codes));
  }
}

// Rows of two tables are added before they are rounded, so these stay as they are.
kernels::DType Parameters::ReadAs(const Tensor& tensor) const {
  const kernels::DType master = MasterOf(tensor);
  if (!rounds_ || tensor.shape.size() < 2) return master;
  const bool added = has_positions_ && (tensor.role == TensorRole::kTokenEmbedding ||
                                        tensor.role == TensorRole::kPositionEmbedding);
  const kernels::DType type =
      precisions_.ReadAs(tensor.role, static_cast<int>(tensor.layer), tied_);
  return !added && kernels::SizeOf(type) < kernels::SizeOf(master) ? type : master;
}

kernels::DType Parameters::MasterOf(const Tensor& tensor) const {
  return tensor.shape.size() >= 2 ? matrices_ : kernels::DType::kF32;
}

kernels::DType Parameters::WeightsOf(const Tensor& tensor) const {
  return !with_optimizer_ || IsFrozen(tensor) ? ReadAs(tensor) : MasterOf(tensor);
}

void Parameters::ChooseTypes() {
  for (Unit& unit : units_) unit.dtype = ReadAs(all_[unit.parameters[0]].first());
}

// As of moments, scales of what is on NVMe are on the host.
void Parameters::PlaceCodes(Unit* unit, Graph* graph) {
  const int64_t elements = unit->own_elements(), packed = unit->codes->packed;
  const v1::Tier tier = unit->weight_tier == v1::NVME ? v1::HOST : unit->weight_tier;
  const int codes = AddRegion("weights", v1::PARAMETER, unit->weight_tier, *unit,
                              kernels::DType::kU8, elements / packed, graph);
  unit->scales = AddRegion("scales", v1::PARAMETER, tier, *unit, kernels::DType::kF32,
                           elements / frozen_block_, graph);
  if (unit->sharded()) {
    unit->master = codes;
    return;
  }
  unit->weights = codes;
  AddBlockViews([](Parameter& parameter) -> int& { return parameter.weight; }, "weights", *unit,
                packed, codes, graph);
  AddBlockViews([](Parameter& parameter) -> int& { return parameter.scales; }, "scales", *unit,
                frozen_block_, unit->scales, graph);
}

void Parameters::PlaceWeights(Unit* unit, Graph* graph) {
  if (unit->codes != nullptr) return PlaceCodes(unit, graph);
  const auto weight = [](Parameter& parameter) -> int& { return parameter.weight; };
  const auto rounded = [](Parameter& parameter) -> int& { return parameter.rounded; };
  if (unit->sharded()) {
    if (!IsWhole(*unit)) return;
    unit->weights =
        AddRegion("weights", v1::PARAMETER, v1::DEVICE, *unit, unit->dtype, unit->elements, graph);
    return AddViews(weight, "weights", *unit, unit->weights, graph);
  }
  unit->weights = AddWeights("weights", unit->master_tier, *unit, unit->master_dtype, graph);
  AddViews(weight, "weights", *unit, unit->weights, graph);
  if (!unit->rounds()) return;
  unit->rounded = AddWeights("rounded", unit->weight_tier, *unit, unit->dtype, graph);
  AddViews(rounded, "rounded", *unit, unit->rounded, graph);
}

void Parameters::Place(bool sharded, const ParametersOptions& options, Graph* graph) {
  for (Unit& unit : units_) PlaceWeights(&unit, graph);
  if (!options.with_optimizer) return;
  if (!sharded) {
    for (int moment = 0; moment < kernels::kMomentsMax; ++moment) {
      for (Unit& unit : units_) {
        if (Keeps(unit, kMomentKinds[moment])) PlaceMoment(moment, &unit, graph);
      }
    }
    for (size_t factor = 0; factor < kFactorKinds.size(); ++factor) {
      for (Unit& unit : units_) {
        if (Keeps(unit, kFactorKinds[factor])) PlaceFactor(factor, &unit, graph);
      }
    }
    return;
  }
  for (Unit& unit : units_) PlaceShared(&unit, graph);
}

void Parameters::PlaceStates(Unit* unit, Graph* graph) {
  for (int moment = 0; moment < kernels::kMomentsMax; ++moment) {
    if (Keeps(*unit, kMomentKinds[moment])) PlaceMoment(moment, unit, graph);
  }
  for (size_t factor = 0; factor < kFactorKinds.size(); ++factor) {
    if (Keeps(*unit, kFactorKinds[factor])) PlaceFactor(factor, unit, graph);
  }
}

void Parameters::PlaceShared(Unit* unit, Graph* graph) {
  if (unit->kept) return PlaceStates(unit, graph);
  if (!unit->sharded() || unit->codes != nullptr) return;
  unit->master = AddWeights("master", unit->master_tier, *unit, unit->master_dtype, graph);
  if (unit->rounds() && unit->weights == kNone)
    unit->rounded = AddWeights("rounded", unit->weight_tier, *unit, unit->dtype, graph);
  if (unit->update.frozen) return;
  PlaceStates(unit, graph);
  if (const auto residual = ResidualOf(all_[unit->parameters[0]].first()))
    unit->residual =
        AddRegion("residual", v1::OPTIMIZER, v1::DEVICE, *unit, *residual, unit->elements, graph);
}

std::optional<kernels::DType> Parameters::ResidualOf(const Tensor& tensor) const {
  const bool shared = tensor.role == TensorRole::kTokenEmbedding && parallel_.groups.tied != kNone;
  const bool has = tensor.shape.size() >= 2 && !shared && !IsFrozen(tensor);
  return has ? residuals_ : std::nullopt;
}

// Where it is on NVMe its scales are on the host: few, and no pages.
void Parameters::PlaceMoment(int moment, Unit* unit, Graph* graph) {
  const int64_t elements = unit->own_elements();
  const int home = AddRegion(kMomentNames[moment], v1::OPTIMIZER, unit->optimizer_tier, *unit,
                             unit->moment_dtype, elements, graph);
  int scales = kNone;
  if (unit->in_blocks()) {
    const v1::Tier tier = unit->optimizer_tier == v1::NVME ? v1::HOST : unit->optimizer_tier;
    scales = AddRegion(kScalesNames[moment], v1::OPTIMIZER, tier, *unit, kernels::DType::kF32,
                       BlocksOf(elements, moment_block_), graph);
  }
  if (unit->sharded()) {
    unit->moments.numbers[moment] = home;
    unit->moments.scales[moment] = scales;
    return;
  }
  AddViews([moment](Parameter& parameter) -> int& { return parameter.moments.numbers[moment]; },
           kMomentNames[moment], *unit, home, graph);
  if (scales == kNone) return;
  AddBlockViews([moment](Parameter& parameter) -> int& { return parameter.moments.scales[moment]; },
                kScalesNames[moment], *unit, moment_block_, scales, graph);
}

// Of a unit that is dealt a rank has those of one parameter.
void Parameters::PlaceFactor(size_t factor, Unit* unit, Graph* graph) {
  const auto elements_of = [&](const Parameter& parameter) {
    int64_t elements = 0;
    for (const Part& part : parameter.parts) elements += FactorElements(part, kFactorKinds[factor]);
    return elements;
  };
  const auto add = [&](int64_t elements) {
    return AddRegion(kFactorNames[factor], v1::OPTIMIZER, v1::DEVICE, *unit, kernels::DType::kF32,
                     elements, graph);
  };
  if (unit->dealt) {
    unit->moments.factors[factor] = add(elements_of(all_[unit->parameters[0]]));
    return;
  }
  std::vector<int64_t> offsets;
  int64_t end = 0;
  for (const int i : unit->parameters) {
    offsets.push_back(AlignUp(end, kAlignElements));
    end = offsets.back() + elements_of(all_[i]);
  }
  const int home = add(end);
  for (size_t i = 0; i < offsets.size(); ++i) {
    Parameter& parameter = all_[unit->parameters[i]];
    parameter.moments.factors[factor] =
        graph->Add({.name = absl::StrCat(kFactorNames[factor], ".", parameter.first().name),
                    .cls = v1::OPTIMIZER,
                    .dtype = kernels::DType::kF32,
                    .shape = {elements_of(parameter)},
                    .lifetime = v1::PERSISTENT,
                    .inside = home,
                    .inside_offset = offsets[i],
                    .parameter = unit->parameters[i]});
  }
}

int Parameters::AddRegion(const char* kind, v1::BufferClass cls, v1::Tier tier, const Unit& unit,
                          kernels::DType dtype, int64_t elements, Graph* graph) const {
  return graph->Add({.name = absl::StrCat(kind, ".", unit.name),
                     .cls = cls,
                     .dtype = dtype,
                     .shape = {elements},
                     .lifetime = v1::PERSISTENT,
                     .tier = tier});
}

int Parameters::AddWeights(const char* kind, v1::Tier tier, const Unit& unit, kernels::DType dtype,
                           Graph* graph) const {
  return AddRegion(kind, v1::PARAMETER, tier, unit, dtype, unit.own_elements(), graph);
}

void Parameters::AddViews(absl::FunctionRef<int&(Parameter&)> field, const char* name,
                          const Unit& unit, int region, Graph* graph) {
  for (int i : unit.parameters) {
    Parameter& parameter = all_[i];
    field(parameter) = graph->Add({.name = absl::StrCat(name, ".", parameter.first().name),
                                   .cls = graph->values[region].cls,
                                   .dtype = graph->values[region].dtype,
                                   .shape = parameter.shape,
                                   .lifetime = v1::PERSISTENT,
                                   .inside = region,
                                   .inside_offset = parameter.offset,
                                   .parameter = i});
  }
}

void Parameters::AddBlockViews(absl::FunctionRef<int&(Parameter&)> field, const char* name,
                               const Unit& unit, int64_t block, int region, Graph* graph) {
  for (int i : unit.parameters) {
    Parameter& parameter = all_[i];
    field(parameter) = graph->Add({.name = absl::StrCat(name, ".", parameter.first().name),
                                   .cls = graph->values[region].cls,
                                   .dtype = graph->values[region].dtype,
                                   .shape = {BlocksOf(parameter.elements(), block)},
                                   .lifetime = v1::PERSISTENT,
                                   .inside = region,
                                   .inside_offset = parameter.offset / block,
                                   .parameter = i});
  }
}

int Parameters::Find(TensorRole role, int layer) const {
  const auto it = by_role_.find({role, layer});
  return it == by_role_.end() ? kNone : it->second;
}

}  // namespace terrace::compiler
