// What closed forms of memory and of time both read off a layout: its stages, the ranks that share
// states, what is recomputed.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "coordinator/model/model.h"
#include "coordinator/planner/estimate_held.h"
#include "kernels/newton_schulz.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

inline constexpr int64_t kF32Bytes = 4;
// Of the weights that the optimizer updates, and of those that passes read: norms and biases are
// few.
int64_t MasterBytes(const v1::Layout& layout);
double WeightBytes(const v1::Layout& layout);
// Of gradients, those of norms and biases likewise left out.
int64_t GradientBytes(const v1::Layout& layout);
// The same, relative to f32.
double MasterShare(const v1::Layout& layout);
double WeightShare(const v1::Layout& layout);
double GradientShare(const v1::Layout& layout);
// One moment takes this much relative to f32 weights: MomentShare counts the scales of its blocks,
// CodeShare does not.
double MomentShare(const v1::Layout& layout, const ModelConfig& config);
double CodeShare(const v1::Layout& layout);

// Of an activation: as it is computed, and as it waits for the backward pass, scales counted.
int64_t ElementBytes(const v1::Layout& layout);
double WaitingBytes(const v1::Layout& layout);
// Of a gradient as ranks send it to be summed, of a sum of some ranks as it goes to others, and
// what making and adding up codes moves for each gradient in one micro-batch.
double ReducedBytes(const v1::Layout& layout);
double BytesOfSums(const v1::Layout& layout);
double ReducedTraffic(const v1::Layout& layout);
// Of what the codes of a gradient were not worth, where that is kept (layout.residual_format).
int64_t ResidualBytes(const v1::Layout& layout);
// Of a weight as ranks gather it for a use, and what decoding that moves for each weight of a stage
// in the two directions of one micro-batch.
double GatheredBytes(const v1::Layout& layout);
double DecodedTraffic(const v1::Layout& layout);
// What weights that rest as codes take, of what they would take as passes read them.
double CodedShareOfWeights(const v1::Layout& layout, const ModelConfig& config);

// Ranks that share the states with ZeRO, and those whose gradients are summed.
int64_t ShardRanks(const v1::Layout& layout);
int64_t DataRanks(const v1::Layout& layout);

// How often a step prefetches the weights of a chunk for a direction, and sends its gradients.
int64_t RunsOf(const v1::Layout& layout);

// Idle over busy time.
double Bubble(const v1::Layout& layout);

// Bytes of a tile, with tile_bytes where it has an effect (docs/offload.md); 0: matrices are whole.
int64_t TileBytes(const v1::Layout& layout);

// The recompute of most layers stands for all.
std::string_view RecomputeOf(const v1::Layout& layout);

// Layers between two activations that are kept; 0: every activation of a layer is.
int64_t RecomputeGroup(const v1::Layout& layout, int64_t layers);

struct EstimatedStage {  // of a layout
  int64_t index = 0;
  int64_t layers = 0;
  int64_t parameters = 0;      // before tensor parallelism divides them
  int64_t trained = 0;         // of these, those that are not frozen
  int64_t layers_trained = 0;  // of these, those of layers
  int64_t coded = 0;           // of `parameters`, those that rest as codes (layout.frozen_format)
  int64_t back_layers = 0;     // of `layers`, those with a backward pass
  bool head_trained = true;
  // Moments that the optimizer keeps of `trained`, those with two counted twice.
  int64_t moments = 0;
  // With ZeRO, of what is updated as wholes (layout/dealing.h): parameters that every rank keeps,
  // those that would fill shards which got none, and the moments of both.
  int64_t kept = 0, empty = 0, kept_moments = 0, empty_moments = 0;
  int64_t updated_layers = 0;  // whose matrices a rank updates
  double flops_per_token = 0;
  bool head = false;  // has the head and the loss
  HeldMoments held = {};

  double trained_share() const { return Share(trained, parameters); }
  double coded_share() const { return Share(coded, parameters); }
  // An average over the parameters that are trained.
  double moments_each() const { return trained == 0 ? 0 : Share(moments, trained); }
  double back_share() const { return Share(back_layers, layers); }
  static double Share(int64_t part, int64_t all) {
    return all == 0 ? 1 : static_cast<double>(part) / static_cast<double>(all);
  }
};

// The optimizer reads and writes this much, in f32 weights: the gradient, moments twice, weights
// twice; and what the next step makes of them first.
double Updated(const v1::Layout& layout, const EstimatedStage& stage);

// DecodedTraffic of a stage's frozen weights that rest as codes.
double FrozenTraffic(const v1::Layout& layout, const ModelConfig& config,
                     const EstimatedStage& stage);

// What the closed forms know of a model. Thread-safe: immutable once made.
struct EstimateModel {
  EstimateModel(const v1::JobSpec& spec, const Model& model);

  std::vector<EstimatedStage> Stages(const v1::Layout& layout) const;

  // Gradients are used up as soon as they are final (layout/rules.h).
  bool AtOnce(const v1::Layout& layout) const;
  // Besides, no later pass adds to what an earlier one left: no gradient waits.
  bool NoGradientWaits(const v1::Layout& layout) const;

  void SetTrained(const v1::OptimizerSpec& optimizer, const Model& model);
  // `count` layers of the model from `begin` on.
  void AddLayers(const v1::Layout& layout, int64_t begin, int64_t count,
                 EstimatedStage* stage) const;
  // What a stage's ranks keep and get of tensors that are updated as wholes. `chunks`: layers of
  // each of its model chunks.
  void DealWholes(const v1::Layout& layout, const std::vector<int64_t>& chunks,
                  EstimatedStage* stage) const;
  // The head and the loss.
  void FinishLast(int64_t index, double head_flops, EstimatedStage* stage) const;

  // Of tables and the head on a stage, before tensor parallelism divides them, that stay as their
  // masters are where weights are rounded (compiler/parameters.h).
  int64_t ExactParameters(const v1::Layout& layout, const EstimatedStage& stage) const;

  ModelConfig config;
  bool adds_tables = false;  // rows of two tables are added up
  int64_t sequence = 0;
  double clip_grad_norm = 0;
  int64_t layer_parameters = 0;
  int64_t adapter_ranks = 0;  // of a layer's adapters, added up
  // Columns of the attention's result where a layer's adapter reads it with elements dropped: both
  // are kept. Of what other adapters read only the rest is, as the layers beside them are frozen.
  int64_t dropped_attention = 0;
  int64_t embedding_parameters = 0;
  int64_t head_parameters = 0;  // a tied one too, when another stage than the first has it
  // Where something is frozen: what of these is trained, and the first layer that trains something
  // (layout/parameter_groups.h).
  bool freezes = false;
  std::vector<int64_t> layer_trained;          // by layer
  std::vector<int64_t> layer_frozen_matrices;  // by layer: parameters of matrices that are frozen
  int64_t embedding_trained = 0, head_trained = 0;
  std::vector<int64_t> layer_moments;  // by layer: what the rules keep of its parameters
  int64_t embedding_moments = 0, head_moments = 0;
  int64_t first_trained_layer = -1;
  double flops_per_token = 0;
  // A rule of whole matrices computes this much for a layer, on average, and this is the largest
  // matrix that it updates; of a factored rule it is the widest tensor; zeros with other rules.
  double update_flops = 0;
  bool update_factored = false;
  // Of a layer, on average: what is in its matrices that are updated as wholes, and in vectors.
  int64_t whole_parameters = 0, whole_moments = 0, whole_vectors = 0;
  bool layers_differ = false;  // in how they are updated
  kernels::NewtonSchulzShape update_matrix = {};
};

}  // namespace terrace
