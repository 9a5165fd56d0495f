// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/estimate_stages.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <string>

#include "coordinator/layout/dealing.h"
#include "coordinator/layout/parameter_groups.h"
#include "coordinator/layout/precision.h"
#include "coordinator/layout/rules.h"
#include "coordinator/model/lora.h"
#include "proto/program/moments.h"

namespace terrace {

int64_t ElementBytes(const v1::Layout& layout) {
  return layout.precision() == "fp32" || layout.precision() == "tf32" ? kF32Bytes : 2;
}

namespace {

double BytesIn(const kernels::FormatRow* format, double otherwise) {
  constexpr double kBits = 8;
  return format == nullptr ? otherwise : format->BitsAnElement() / kBits;
}

}  // namespace

double WaitingBytes(const v1::Layout& layout) {
  return BytesIn(ActivationFormat(layout), static_cast<double>(ElementBytes(layout)));
}

double GatheredBytes(const v1::Layout& layout) {
  return BytesIn(GatherFormat(layout), WeightBytes(layout));
}

double ReducedBytes(const v1::Layout& layout) {
  return BytesIn(ReduceCodes(layout), layout.reduce_format() == "bf16" ? 2 : kF32Bytes);
}

double BytesOfSums(const v1::Layout& layout) {
  return BytesIn(CodesOfSums(layout), ReducedBytes(layout));
}

int64_t ResidualBytes(const v1::Layout& layout) {
  const std::optional<kernels::DType> type = ResidualType(layout);
  return type.has_value() ? kernels::SizeOf(*type) : 0;
}

// Read and written where they are made, read where they are added up.
double ReducedTraffic(const v1::Layout& layout) {
  if (ReduceCodes(layout) == nullptr) return 0;
  // With zero 1 a rank has the whole gradient of a step before it is sent.
  const double sums = layout.zero_stage() > 1 ? static_cast<double>(RunsOf(layout)) : 1;
  const double codes = 2 * ReducedBytes(layout);
  // In two levels the sums of a block are written, read and encoded, each rank its part.
  const double near = int64_t{layout.reduce_block()} * layout.context_parallel();
  const double again = layout.reduce_block() > 1 ? 2 * (kF32Bytes + BytesOfSums(layout)) / near : 0;
  return sums / layout.micro_batches() *
         (static_cast<double>(GradientBytes(layout) + 2 * ResidualBytes(layout)) + codes + again);
}

double DecodedTraffic(const v1::Layout& layout) {
  if (GatherFormat(layout) == nullptr) return 0;
  const double runs = static_cast<double>(RunsOf(layout)) / layout.micro_batches();
  return 2 * runs * (GatheredBytes(layout) + WeightBytes(layout));
}

// Decoded for each pass that a layer has.
double FrozenTraffic(const v1::Layout& layout, const ModelConfig& config,
                     const EstimatedStage& stage) {
  if (FrozenFormat(layout) == nullptr) return 0;
  const double runs = static_cast<double>(RunsOf(layout)) / layout.micro_batches();
  return (1 + stage.back_share()) * runs * stage.coded_share() *
         (FrozenBytes(layout, config) + WeightBytes(layout));
}

double CodedShareOfWeights(const v1::Layout& layout, const ModelConfig& config) {
  return FrozenFormat(layout) == nullptr ? 1 : FrozenBytes(layout, config) / WeightBytes(layout);
}

int64_t MasterBytes(const v1::Layout& layout) {
  return layout.stochastic_rounding() ? 2 : kF32Bytes;
}

double WeightBytes(const v1::Layout& layout) {
  constexpr double kRoundedBytes = 2;
  const double rounded = RoundedShare(layout);
  return rounded * kRoundedBytes + (1 - rounded) * static_cast<double>(MasterBytes(layout));
}

int64_t GradientBytes(const v1::Layout& layout) {
  return layout.gradient_format() == "bf16" ? 2 : kF32Bytes;
}

double MasterShare(const v1::Layout& layout) {
  return static_cast<double>(MasterBytes(layout)) / kF32Bytes;
}

double WeightShare(const v1::Layout& layout) { return WeightBytes(layout) / kF32Bytes; }

double GradientShare(const v1::Layout& layout) {
  return static_cast<double>(GradientBytes(layout)) / kF32Bytes;
}

double CodeShare(const v1::Layout& layout) {
  return static_cast<double>(kernels::SizeOf(MomentFormat(layout).elements)) / kF32Bytes;
}

double MomentShare(const v1::Layout& layout, const ModelConfig& config) {
  const double codes = CodeShare(layout);
  if (MomentFormat(layout).block == 0) return codes;
  return codes + 1 / static_cast<double>(MomentBlock(layout, config));
}

double Updated(const v1::Layout& layout, const EstimatedStage& stage) {
  const double rounded = RoundsWeights(layout) ? MasterShare(layout) + WeightShare(layout) : 0;
  // A factored rule sums squares of gradients, of steps and of weights first.
  const double sums =
      OptimizerOf(layout).factored ? 2 * GradientShare(layout) + MasterShare(layout) : 0;
  return GradientShare(layout) + 2 * stage.moments_each() * CodeShare(layout) +
         2 * MasterShare(layout) + rounded + sums;
}

int64_t ShardRanks(const v1::Layout& layout) {
  if (layout.zero_stage() == 0) return 1;
  const int64_t shard = layout.shard_size() > 0 ? layout.shard_size() : layout.data_parallel();
  return shard * layout.context_parallel();
}
int64_t DataRanks(const v1::Layout& layout) {
  return int64_t{layout.data_parallel()} * layout.context_parallel();
}

namespace {

// A pass over a chunk takes one part of `interleave`; with fewer micro-batches than stages each
// chunk's first waits for the chunk before to come round.
double BreadthFirstBubble(const v1::Layout& layout) {
  const double stages = layout.pipeline_parallel(), chunks = layout.interleave();
  const double batches = std::max<double>(1, layout.micro_batches());
  return (stages - 1 + (chunks - 1) * std::max(0.0, stages - batches)) / (chunks * batches);
}

}  // namespace

int64_t RunsOf(const v1::Layout& layout) {
  return InRuns(layout.schedule()) ? 1 : int64_t{layout.micro_batches()};
}

double Bubble(const v1::Layout& layout) {
  const double share =
      (layout.pipeline_parallel() - 1.0) / std::max<double>(1, layout.micro_batches());
  if (layout.schedule() == "interleaved") return share / layout.interleave();
  if (InRuns(layout.schedule())) return BreadthFirstBubble(layout);
  if (layout.schedule() == "zb-h1") return share / 3;
  if (layout.schedule() == "zbv") return 0;
  return share;
}

int64_t TileBytes(const v1::Layout& layout) {
  const bool prefetched =
      layout.zero_stage() == 3 ||
      (layout.zero_stage() == 0 && FarthestTier(layout.offload().parameter()) != v1::DEVICE);
  return prefetched && layout.tensor_parallel() == 1 ? layout.tile_bytes() : 0;
}

std::string_view RecomputeOf(const v1::Layout& layout) {
  const auto& layers = layout.recompute_layers();
  if (layers.empty()) return layout.recompute();
  std::string_view most = "none";
  int64_t count = 0;
  for (const std::string_view kind : {"none", "selective", "block"}) {
    const int64_t of_kind = std::count(layers.begin(), layers.end(), kind);
    if (of_kind > count) most = kind;
    count = std::max(count, of_kind);
  }
  return most;
}

int64_t RecomputeGroup(const v1::Layout& layout, int64_t layers) {
  const std::string_view recompute = RecomputeOf(layout);
  if (recompute == "block") return 1;
  if (recompute == "every") return std::min<int64_t>(layers, layout.recompute_every());
  if (recompute == "sqrt") return std::lround(std::sqrt(static_cast<double>(layers)));
  return recompute == "full" ? layers : 0;
}

EstimateModel::EstimateModel(const v1::JobSpec& spec, const Model& model)
    : config(model.config),
      sequence(spec.data().sequence_length()),
      clip_grad_norm(spec.train().clip_grad_norm()),
      flops_per_token(FlopsPerToken(model, sequence)) {
  for (const Tensor& tensor : model.tensors) {
    int64_t* sum = &layer_parameters;
    if (tensor.layer < 0) {
      sum = IsOfEmbedding(tensor.role) ? &embedding_parameters : &head_parameters;
    }
    *sum += tensor.elements();
    if (!IsLoraA(tensor.role)) continue;
    adapter_ranks += tensor.shape[0];
    const bool drops = config.dropout.adapter > 0;
    if (drops && AdaptedRole(tensor.role) == TensorRole::kAttentionOut)
      dropped_attention += tensor.shape[1];
  }
  SetTrained(spec.train().optimizer(), model);
  const int64_t layers = std::max<int64_t>(1, config.layers);
  update_flops /= static_cast<double>(layers);
  for (int64_t* sum : {&whole_parameters, &whole_moments, &whole_vectors}) *sum /= layers;
  adds_tables = model.Find(TensorRole::kPositionEmbedding) != nullptr;
  layer_parameters /= std::max<int64_t>(1, config.layers);
  adapter_ranks /= std::max<int64_t>(1, config.layers);
  dropped_attention /= std::max<int64_t>(1, config.layers);
}

void EstimateModel::SetTrained(const v1::OptimizerSpec& optimizer, const Model& model) {
  freezes = FrozenParameters(optimizer, model) > 0;
  layers_differ = optimizer.layer_decay() > 0;
  if (freezes) first_trained_layer = FirstTrainedLayer(optimizer, model);
  layer_trained.assign(config.layers, 0);
  layer_moments.assign(config.layers, 0);
  layer_frozen_matrices.assign(config.layers, 0);
  for (const Tensor& tensor : model.tensors) {
    const TensorUpdate update = UpdateOf(optimizer, config, tensor);
    if (update.frozen) {
      if (tensor.layer >= 0 && tensor.shape.size() >= 2)
        layer_frozen_matrices[tensor.layer] += tensor.elements();
      continue;
    }
    const bool embeds = IsOfEmbedding(tensor.role);
    int64_t& sum = tensor.layer >= 0 ? layer_trained[tensor.layer]
                   : embeds          ? embedding_trained
                                     : head_trained;
    sum += tensor.elements();
    int64_t& moments = tensor.layer >= 0 ? layer_moments[tensor.layer]
                       : embeds          ? embedding_moments
                                         : head_moments;
    const kernels::OptimizerRow& rule = kernels::RowOf(update.rule);
    const bool is_matrix = tensor.shape.size() >= 2;
    int64_t own_moments = 0;
    for (const v1::StateKind kind : MomentKinds(rule, is_matrix, optimizer.beta1() > 0)) {
      const std::vector<int64_t> shape = MomentShape(kind, tensor.shape);
      own_moments += std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    }
    moments += own_moments;
    if (UpdatesWholes(rule) && tensor.layer >= 0) {
      (is_matrix ? whole_parameters : whole_vectors) += tensor.elements();
      if (is_matrix) whole_moments += own_moments;
    }
    if (rule.factored) {
      update_factored = true;
      const int64_t rows = tensor.shape.size() < 2 ? 1 : tensor.shape[0];
      const kernels::NewtonSchulzShape whole = {rows, tensor.elements() / rows};
      if (whole.columns > update_matrix.columns) update_matrix = whole;
    }
    if (!rule.whole_matrix) continue;
    const kernels::NewtonSchulzShape matrix = {tensor.shape[0], tensor.shape[1]};
    update_flops += static_cast<double>(optimizer.ns_steps() * matrix.Flops());
    if (tensor.elements() > update_matrix.rows * update_matrix.columns) update_matrix = matrix;
  }
}

void EstimateModel::AddLayers(const v1::Layout& layout, int64_t begin, int64_t count,
                              EstimatedStage* stage) const {
  stage->layers += count;
  for (int64_t layer = begin; layer < begin + count; ++layer)
    stage->moments += layer_moments[layer];
  for (int64_t layer = begin; freezes && layer < begin + count; ++layer) {
    stage->trained += layer_trained[layer];
    stage->layers_trained += layer_trained[layer];
    if (FrozenFormat(layout) != nullptr) stage->coded += layer_frozen_matrices[layer];
    if (layer >= first_trained_layer) ++stage->back_layers;
  }
}

int64_t EstimateModel::ExactParameters(const v1::Layout& layout,
                                       const EstimatedStage& stage) const {
  if (!RoundsWeights(layout)) return 0;
  const bool head = ProductFormat(HeadPrecision(layout)) != layout.parameter_format();
  const bool tables =
      adds_tables || layout.embedding_precision() == "fp32" || (config.tied_embeddings && head);
  if (stage.index == 0 && tables)
    return embedding_parameters +
           (stage.head && head && !config.tied_embeddings ? head_parameters : 0);
  if (!stage.head) return 0;
  if (config.tied_embeddings)
    return tables && stage.index > 0 ? config.vocabulary * config.hidden : 0;
  return head ? head_parameters : 0;
}

bool EstimateModel::AtOnce(const v1::Layout& layout) const {
  return UpdatesAtOnce(layout, clip_grad_norm);
}

bool EstimateModel::NoGradientWaits(const v1::Layout& layout) const {
  return AtOnce(layout) && (layout.micro_batches() <= 1 || InRuns(layout.schedule()));
}

std::vector<EstimatedStage> EstimateModel::Stages(const v1::Layout& layout) const {
  const int64_t count = layout.pipeline_parallel();
  std::vector<EstimatedStage> stages(count);
  const std::vector<int64_t> chunks = ChunkLayers(layout, config.layers);
  int64_t last = count - 1;  // the stage of the last chunk
  if (layout.schedule() == "zbv") last = 0;
  int64_t begin = 0;
  for (int64_t chunk = 0; chunk < static_cast<int64_t>(chunks.size()); ++chunk) {
    // zbv goes down the stages and up again, the others go round.
    const bool up = layout.schedule() == "zbv" && chunk >= count;
    AddLayers(layout, begin, chunks[chunk], &stages[up ? 2 * count - 1 - chunk : chunk % count]);
    begin += chunks[chunk];
  }
  std::vector<int64_t> own(chunks.size() / count);  // chunks of a stage, in order
  const double head_flops = 6.0 * static_cast<double>(config.hidden * config.vocabulary);
  const double layer_flops =
      (flops_per_token - head_flops) / static_cast<double>(std::max<int64_t>(1, config.layers));
  for (int64_t i = 0; i < count; ++i) {
    EstimatedStage& stage = stages[i];
    stage.index = i;
    for (int64_t turn = 0; turn < static_cast<int64_t>(own.size()); ++turn) {
      const bool up = layout.schedule() == "zbv" && turn == 1;
      own[turn] = chunks[up ? 2 * count - 1 - i : turn * count + i];
    }
    stage.held = HeldMomentsOf(layout, i, own);
    stage.parameters = stage.layers * layer_parameters;
    stage.flops_per_token = static_cast<double>(stage.layers) * layer_flops;
    if (i == 0) stage.parameters += embedding_parameters;
    if (i == 0) stage.trained += embedding_trained;
    if (i == 0) stage.moments += embedding_moments;
    if (i == last) FinishLast(i, head_flops, &stage);
    if (!freezes) {
      stage.trained = stage.parameters;
      stage.layers_trained = stage.layers * layer_parameters;
      stage.back_layers = stage.layers;
    }
    DealWholes(layout, own, &stage);
  }
  return stages;
}

// Chunks whose gradients are summed apart have units of their own.
void EstimateModel::DealWholes(const v1::Layout& layout, const std::vector<int64_t>& chunks,
                               EstimatedStage* stage) const {
  stage->updated_layers = stage->layers;
  const int64_t ranks = ShardRanks(layout);
  if (ranks == 1 || whole_parameters == 0) return;
  std::vector<int64_t> counts = {stage->layers};
  if (layout.zero_stage() > 1) counts = chunks;
  if (layers_differ) counts.assign(stage->layers, 1);
  Deal all;
  int64_t empty = 0;
  for (const int64_t count : counts) {
    const Deal deal = DealOf(count, ranks);
    all = {all.rounds + deal.rounds, all.kept + deal.kept};
    empty += deal.rounds * ranks - (count - deal.kept);
  }
  stage->updated_layers = all.rounds + all.kept;
  stage->empty = empty * whole_parameters;
  stage->empty_moments = empty * whole_moments;
  stage->kept = all.kept * whole_parameters;
  stage->kept_moments = all.kept * whole_moments;
  if (!update_factored) return;
  // Tables, norms and biases, too.
  const int64_t of_layers = stage->layers * (whole_parameters + whole_vectors);
  stage->kept += stage->layers * whole_vectors + std::max<int64_t>(0, stage->trained - of_layers);
  stage->kept_moments += std::max<int64_t>(0, stage->moments - stage->layers * whole_moments);
}

void EstimateModel::FinishLast(int64_t index, double head_flops, EstimatedStage* stage) const {
  stage->head = true;
  stage->flops_per_token += head_flops;
  stage->parameters += head_parameters;
  stage->trained += head_trained;
  stage->moments += head_moments;
  if (freezes)
    stage->head_trained = config.tied_embeddings ? embedding_trained > 0 : head_trained > 0;
  if (!config.tied_embeddings || index == 0) return;
  stage->parameters += embedding_parameters;
  stage->trained += embedding_trained;
  stage->moments += embedding_moments;
}

}  // namespace terrace
