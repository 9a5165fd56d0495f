// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/estimate_memory.h"

#include <algorithm>

#include "coordinator/planner/layout_rules.h"
#include "kernels/gemm_workspace.h"

namespace terrace {
namespace {

// Of the loss's logits, f32 (compiler/forward_head.h, compiler/workspace.cc).
constexpr int64_t kLogitsBytes = int64_t{64} << 20;
constexpr int64_t kLossRows = 256;

int64_t Part(double share, int64_t bytes) {
  return static_cast<int64_t>(share * static_cast<double>(bytes));
}

int64_t Tokens(const v1::Layout& layout, int64_t sequence) {
  return int64_t{layout.micro_batch()} * sequence / layout.context_parallel();
}

// Zero-bubble stages hold what the weights' gradients need until they are computed, so that they
// gain nothing by computing it again.
bool KeepsAll(const v1::Layout& layout) { return layout.schedule() == "zb-h1"; }

RecomputeCounts CountsOf(const v1::Layout& layout, int64_t layers, int64_t stage) {
  RecomputeCounts counts = {};
  int layer = 0;
  const std::vector<int64_t> chunks = ChunkLayers(layout, layers);
  for (int64_t chunk = 0; chunk < static_cast<int64_t>(chunks.size()); ++chunk) {
    const bool here = StageOfChunk(layout, chunk) == stage;
    for (const int end = layer + static_cast<int>(chunks[chunk]); layer < end; ++layer) {
      const std::string& recompute = layout.recompute_layers(layer);
      if (here) ++counts[recompute == "none" ? 0 : recompute == "selective" ? 1 : 2];
    }
  }
  return counts;
}

// Of `layers` layers or a head that is brought for a use: at most three tiles are there at once,
// and a gradient.
int64_t Brought(int64_t bytes, int64_t tile_bytes) {
  constexpr int64_t kTilesThere = 4;
  return tile_bytes > 0 ? std::min(bytes, kTilesThere * tile_bytes) : bytes;
}

// What weights take whose gradients take so many bytes.
int64_t InWeights(const v1::Layout& layout, int64_t bytes) {
  return bytes / kF32Bytes * WeightBytes(layout);
}

// Keeps the largest of the moments it is told of.
class Peak {
 public:
  Peak(int64_t state_bytes, int64_t whole_bytes) : states_(state_bytes), whole_(whole_bytes) {}

  void Moment(int64_t gathered, int64_t gradients, int64_t activations, int64_t workspace) {
    const MemoryEstimate moment = {.state_bytes = states_ + std::min(whole_, gathered),
                                   .gradient_bytes = gradients,
                                   .activation_bytes = activations,
                                   .workspace_bytes = workspace};
    if (moment.total() > most_.total()) most_ = moment;
  }
  const MemoryEstimate& most() const { return most_; }

 private:
  const int64_t states_;
  const int64_t whole_;
  MemoryEstimate most_;
};

}  // namespace

// Both norms, q k v, the attention's result, both residual sums and the MLP's inner values; of the
// sums of a block's parts and of what comes in, each rank has its tokens only with
// sequence_parallel.
LayerBytes MemoryEstimator::BytesOfLayer(const v1::Layout& layout) const {
  const ModelConfig& config = model_.config;
  const int64_t tp = layout.tensor_parallel(), e = ElementBytes(layout);
  const int64_t sp = layout.sequence_parallel() ? tp : 1;
  const int64_t kv_heads = std::max(config.kv_heads, std::min(tp, config.heads));
  const int64_t kv = kv_heads * config.head_dim, attention = config.heads * config.head_dim;
  const int64_t inner = (config.mlp == MlpKind::kSwiglu ? 3 : 2) * config.intermediate;
  const int64_t qk_norm = config.qk_norm ? attention + kv : 0;
  const int64_t whole = sp > 1 ? 2 * config.hidden + 2 * config.hidden / sp : 4 * config.hidden;
  LayerBytes bytes;
  // Statistics of the norms and the attention stay f32.
  bytes.none = e * ((2 * attention + 2 * kv + qk_norm + inner) / tp + whole) +
               kF32Bytes * (config.heads / tp + std::max<int64_t>(1, 2 / sp));
  if (layout.context_parallel() > 1) {
    bytes.none += e * (layout.context_type() == "ulysses" ? attention : 2 * kv) / tp;
  }
  bytes.selective = bytes.none - e * (2 * config.hidden + config.intermediate / tp);
  bytes.block = e * config.hidden / sp;
  const int64_t tokens = Tokens(layout, model_.sequence);
  return {bytes.none * tokens, bytes.selective * tokens, bytes.block * tokens};
}

int64_t MemoryEstimator::PassesHeld(const v1::Layout& layout, int64_t stage) {
  const int64_t stages = layout.pipeline_parallel();
  const int64_t chunks = layout.interleave();
  const int64_t all = layout.micro_batches() * chunks;
  if (layout.schedule() == "gpipe") return all;
  if (layout.schedule() == "zbv") return std::min(all, 2 * stages);
  if (layout.schedule() == "interleaved") {
    return std::min(all, 2 * (stages - 1 - stage) + (chunks - 1) * stages + 1);
  }
  if (layout.schedule() == "zb-h1") return std::min(all, stages);
  return std::min(all, stages - stage);
}

MemoryEstimator::Activations MemoryEstimator::ActivationsOf(const v1::Layout& layout,
                                                            const EstimatedStage& stage,
                                                            const RecomputeCounts* counts) const {
  const LayerBytes bytes = BytesOfLayer(layout);
  const int64_t chunks = layout.interleave();
  Activations activations = {.layer = bytes.none,
                             .passes = PassesHeld(layout, stage.index),
                             .layers = std::max<int64_t>(1, stage.layers / chunks)};
  RecomputeCounts listed = {stage.layers, 0, 0};
  const int64_t group = RecomputeGroup(layout, activations.layers);
  const bool groups = counts == nullptr && layout.recompute_layers().empty() && group > 1;
  if (counts != nullptr) {
    listed = *counts;
  } else if (!layout.recompute_layers().empty()) {
    listed = CountsOf(layout, model_.config.layers, stage.index);
  } else if (layout.recompute() == "selective") {
    listed = {0, stage.layers, 0};
  } else if (group == 1) {
    listed = {0, 0, stage.layers};
  }
  int64_t of_stage = listed[0] * bytes.none + listed[1] * bytes.selective + listed[2] * bytes.block;
  if (listed[1] > 0) activations.again = bytes.none - bytes.selective;
  if (listed[2] > 0) activations.again = bytes.none;
  if (groups) {
    of_stage = chunks * ((activations.layers + group - 1) / group) * bytes.block;
    activations.again = group * bytes.none;
  }
  if (KeepsAll(layout)) of_stage = stage.layers * bytes.none;
  activations.kept = activations.passes * of_stage / chunks;
  return activations;
}

int64_t MemoryEstimator::ActivationBytes(const v1::Layout& layout,
                                         const EstimatedStage& stage) const {
  return ActivationsOf(layout, stage, nullptr).kept;
}

int64_t MemoryEstimator::LossBytes(const v1::Layout& layout) const {
  const int64_t tokens = Tokens(layout, model_.sequence), tp = layout.tensor_parallel();
  const int64_t vocabulary = (model_.config.vocabulary + tp - 1) / tp;
  const int64_t rows = 2 * tokens * model_.config.hidden * ElementBytes(layout);
  if (tp > 1) return rows + std::min(kLogitsBytes, tokens * vocabulary * kF32Bytes);
  auto type = kernels::DType::kF32;
  auto precision = kernels::MatmulPrecision::kF32;
  if (layout.precision() == "bf16" || layout.precision() == "fp8") {
    type = kernels::DType::kBF16;
    precision = kernels::MatmulPrecision::kBF16;
  } else if (layout.precision() == "fp16") {
    type = kernels::DType::kF16;
    precision = kernels::MatmulPrecision::kF16;
  }
  return rows + kernels::LmHeadWorkspaceBytes(
                    tokens, model_.config.hidden, vocabulary, std::min(tokens, kLossRows),
                    /*grad=*/true, type, precision,
                    static_cast<int>(std::max<uint32_t>(1, layout.threads_per_rank())));
}

// Gradients of a residual sum, of what entered the block, and of the MLP's inner values.
int64_t MemoryEstimator::LayerWorkBytes(const v1::Layout& layout) const {
  const int64_t tp = layout.tensor_parallel(), sp = layout.sequence_parallel() ? tp : 1;
  const int64_t inner =
      (model_.config.mlp == MlpKind::kSwiglu ? 2 : 1) * model_.config.intermediate;
  return Tokens(layout, model_.sequence) * ElementBytes(layout) *
         (2 * model_.config.hidden / sp + inner / tp);
}

MemoryEstimate MemoryEstimator::OnDevice(const v1::Layout& layout, const EstimatedStage& stage,
                                         const Activations& kept) const {
  const uint32_t zero = layout.zero_stage();
  const int64_t tp = layout.tensor_parallel(), m = layout.micro_batches();
  const int64_t shards = ShardRanks(layout);
  const int64_t whole = kF32Bytes * stage.parameters / tp;
  const int64_t layer = kF32Bytes * model_.layer_parameters / tp;
  const int64_t table = kF32Bytes * model_.config.vocabulary * model_.config.hidden / tp;
  const int64_t embedding = stage.index == 0 ? table : 0, head = stage.head ? table : 0;
  const int64_t tied = model_.config.tied_embeddings ? std::min(head, embedding) : 0;
  const int64_t layer_work = kept.again + LayerWorkBytes(layout);
  const int64_t first_work = std::max(stage.head ? LossBytes(layout) : 0, layer_work);
  // When all gradients are there, other passes hold theirs, or nothing is held any more.
  const bool steady = m * layout.interleave() > kept.passes;
  const int64_t later = steady ? kept.kept : kept.kept / kept.passes * (kept.passes - 1);
  const int64_t shared = (InWeights(layout, whole) + 2 * whole) / shards;
  const int64_t weights = InWeights(layout, whole);
  Peak peak(zero == 1 || zero == 2 ? shared + weights : shared, weights);
  if (zero == 0 || (zero == 1 && m > 1)) {
    const bool accumulated = m > 1 && layout.schedule() != "gpipe";
    peak.Moment(0, accumulated ? whole : std::min(whole, std::max(head, layer)), kept.kept,
                first_work);
    peak.Moment(0, whole, later > 0 ? later : std::min(kept.kept, kept.layer), layer_work);
    return peak.most();
  }
  // Gradients are scattered as they come: in their shards are those of earlier passes.
  const int64_t shard = whole / shards, sums = m > 1 ? shard : 0;
  const auto parts = [&](int64_t bytes) { return m > 1 ? bytes / shards : 0; };
  const auto gathered = [&](int64_t bytes) { return zero == 3 ? InWeights(layout, bytes) : 0; };
  const auto arrived = [whole](int64_t bytes) { return std::min(whole, bytes); };
  const int64_t first_two = std::min(kept.kept, 2 * kept.kept / (kept.layers * kept.passes));
  const int64_t tile = TileBytes(layout);
  const int64_t one = Brought(layer, tile), two = Brought(2 * layer, tile);
  const int64_t out = tied > 0 ? head : Brought(head, tile);
  peak.Moment(gathered(out + one), arrived(sums + std::max(out, one)), kept.kept, first_work);
  peak.Moment(gathered(two), arrived(sums + tied + two) + parts(two), kept.kept - first_two,
              layer_work);
  peak.Moment(gathered(m > 1 ? embedding + two : two),
              arrived(shard + embedding + two) + parts(embedding + two),
              kept.kept - kept.kept / kept.passes, 0);
  return peak.most();
}

MemoryEstimate MemoryEstimator::StageMemory(const v1::Layout& layout, const EstimatedStage& stage,
                                            const RecomputeCounts* counts) const {
  MemoryEstimate memory = OnDevice(layout, stage, ActivationsOf(layout, stage, counts));
  if (layout.has_offload()) Offload(layout, stage, &memory);
  return memory;
}

// Of what copies pass through on the host: a ring for each operand that the host updates and that
// does not rest there, one for what comes from NVMe and one for what goes there
// (compiler/staging.h).
int64_t MemoryEstimator::StagingBytes(const v1::Layout& layout, int64_t share) const {
  constexpr int64_t kRingBuffers = 4;
  const v1::Offload& offload = layout.offload();
  const auto on_nvme = [](const v1::TierShares& shares) { return shares.nvme() > 0; };
  const auto partly = [](const v1::TierShares& shares) { return shares.host() < 1; };
  const bool updates = offload.optimizer().host() + offload.optimizer().nvme() > 0;
  const bool masters_there = layout.zero_stage() == 1 || layout.zero_stage() == 2;
  const v1::TierShares& weights = masters_there ? offload.optimizer() : offload.parameter();
  const int64_t rings = (updates && partly(offload.gradient()) ? 1 : 0) +
                        (updates && partly(weights) ? 1 : 0) +
                        (on_nvme(offload.optimizer()) ? 2 : 0) +
                        (on_nvme(offload.parameter()) || on_nvme(offload.activation()) ? 1 : 0) +
                        (on_nvme(offload.gradient()) || on_nvme(offload.activation()) ? 1 : 0);
  // A piece is of one parameter, with ZeRO of a layer's or a table's shard.
  const ModelConfig& config = model_.config;
  const int64_t of_layer =
      layout.zero_stage() > 0
          ? model_.layer_parameters
          : config.hidden * std::max((config.mlp == MlpKind::kSwiglu ? 2 : 1) * config.intermediate,
                                     (config.heads + 2 * config.kv_heads) * config.head_dim);
  const int64_t largest = kF32Bytes * std::max(of_layer, config.vocabulary * config.hidden) /
                          layout.tensor_parallel() / ShardRanks(layout);
  return kRingBuffers * rings * std::min({layout.chunk_bytes(), largest, share});
}

void MemoryEstimator::Offload(const v1::Layout& layout, const EstimatedStage& stage,
                              MemoryEstimate* memory) const {
  const v1::Offload& offload = layout.offload();
  const int64_t whole = kF32Bytes * stage.parameters / layout.tensor_parallel();
  const int64_t share = whole / ShardRanks(layout);
  const int64_t weight_share = InWeights(layout, share);
  const int64_t layers = Brought(2 * kF32Bytes * model_.layer_parameters / layout.tensor_parallel(),
                                 TileBytes(layout));
  const int64_t passing =
      std::max(layers, kF32Bytes * model_.embedding_parameters / int64_t{layout.tensor_parallel()});
  const auto away = [memory](int64_t bytes, const v1::TierShares& shares) {
    memory->host_bytes += Part(shares.host(), bytes);
    memory->nvme_bytes += Part(shares.nvme(), bytes);
    return Part(shares.host() + shares.nvme(), bytes);
  };
  memory->state_bytes -= away(2 * share, offload.optimizer());
  // With ZeRO 1 and 2 whole weights stay on the device, and the masters rest with the moments.
  if (layout.zero_stage() == 1 || layout.zero_stage() == 2) {
    memory->state_bytes -= away(weight_share, offload.optimizer());
  } else {
    const int64_t weights = away(weight_share, offload.parameter());
    const int64_t visiting = InWeights(layout, passing);
    const int64_t there_anyway =
        layout.zero_stage() == 3 ? std::min(InWeights(layout, whole), visiting) : 0;
    memory->state_bytes -=
        weights - std::max<int64_t>(0, std::min(weights, visiting) - there_anyway);
  }
  const int64_t gradients = away(layout.zero_stage() == 0 ? whole : share, offload.gradient());
  const int64_t leaving = std::min(gradients, memory->gradient_bytes);
  memory->gradient_bytes -= leaving - std::min(leaving, passing);
  const int64_t kept = away(memory->activation_bytes, offload.activation());
  memory->activation_bytes -= kept - std::min(kept, 3 * kept / std::max<int64_t>(3, stage.layers));
  memory->host_bytes += StagingBytes(layout, share);
}

std::vector<MemoryEstimate> MemoryEstimator::Stages(const v1::Layout& layout) const {
  std::vector<MemoryEstimate> all;
  for (const EstimatedStage& stage : model_.Stages(layout)) {
    all.push_back(StageMemory(layout, stage));
  }
  return all;
}

MemoryEstimate MemoryEstimator::Memory(const v1::Layout& layout) const {
  MemoryEstimate most;
  int64_t host = 0, nvme = 0;
  for (const MemoryEstimate& memory : Stages(layout)) {
    host = std::max(host, memory.host_bytes);
    nvme = std::max(nvme, memory.nvme_bytes);
    if (memory.total() > most.total()) most = memory;
  }
  most.host_bytes = host;
  most.nvme_bytes = nvme;
  return most;
}

}  // namespace terrace
