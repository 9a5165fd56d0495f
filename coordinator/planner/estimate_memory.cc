// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/estimate_memory.h"

#include <algorithm>

#include "coordinator/planner/estimate_work.h"
#include "coordinator/planner/layout_rules.h"

namespace terrace {
namespace {

int64_t Part(double share, int64_t bytes) {
  return static_cast<int64_t>(share * static_cast<double>(bytes));
}

bool SplitsBackward(const v1::Layout& layout) {
  return layout.schedule() == "zb-h1" || layout.schedule() == "zbv";
}

// Layers whose gradients are on their way where those of earlier passes come back to be added to.
constexpr int64_t kPassingLayers = 4;

// So many layers behind a reduction its memory is taken back (compiler/streams.h).
constexpr int64_t kRetiredLayers = 2;

// Parts of each class of memory that rest off the device.
struct Away {
  explicit Away(const v1::Offload& offload)
      : weights(Of(offload.parameter())),
        gradients(Of(offload.gradient())),
        optimizer(Of(offload.optimizer())),
        activations(Of(offload.activation())) {}
  static double Of(const v1::TierShares& shares) { return shares.host() + shares.nvme(); }

  double weights, gradients, optimizer, activations;
};

// With ZeRO 1 the gradients of a chunk leave when its last pass ends. Interleaved passes end chunk
// by chunk where there are no more micro-batches than stages.
int64_t GradientsAtOnce(const v1::Layout& layout, int64_t whole, int64_t table) {
  const bool by_chunk =
      layout.schedule() == "interleaved" && layout.micro_batches() <= layout.pipeline_parallel();
  return by_chunk ? std::min(whole, whole / layout.interleave() + table) : whole;
}

// Of the first stage's first chunk, whose embedding's gradients leave.
int64_t FirstChunkLayers(const v1::Layout& layout, int64_t stage_layers) {
  return layout.stage_layers().empty() ? stage_layers / layout.interleave()
                                       : int64_t{layout.stage_layers(0)};
}

// What the device has of a class of which a part rests elsewhere, so much of it passing through.
int64_t Staying(int64_t bytes, double away, int64_t passing) {
  const int64_t gone = Part(away, bytes);
  return bytes - gone + std::min(gone, passing);
}

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
  const int64_t tokens = TokensOf(layout, model_.sequence);
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
  const int64_t of_chunk = std::max<int64_t>(1, stage.layers / chunks);
  Activations activations = {.whole = bytes.none, .passes = PassesHeld(layout, stage.index)};
  RecomputeCounts listed = {stage.layers, 0, 0};
  const int64_t group = RecomputeGroup(layout, of_chunk);
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
    of_stage = chunks * ((of_chunk + group - 1) / group) * bytes.block;
    activations.again = group * bytes.none;
  }
  const int64_t layers = std::max<int64_t>(1, stage.layers);
  const int64_t put_off = PutOffBytes(layout);
  for (const HeldLayers& held : stage.held) {
    activations.kept =
        std::max(activations.kept, of_stage * held.kept / layers + put_off * held.put_off);
  }
  activations.one_pass = of_stage / chunks;
  activations.one_layer = std::max(of_stage / layers, SplitsBackward(layout) ? put_off : 0);
  return activations;
}

int64_t MemoryEstimator::ActivationBytes(const v1::Layout& layout,
                                         const EstimatedStage& stage) const {
  const Activations activations = ActivationsOf(layout, stage, nullptr);
  const int64_t of_pass =
      layout.schedule() == "zb-h1" ? stage.layers * activations.whole : activations.one_pass;
  return activations.passes * of_pass;
}

// Inputs of the products and gradients of their results; of sums of a block's parts all tokens.
int64_t MemoryEstimator::PutOffBytes(const v1::Layout& layout) const {
  const ModelConfig& config = model_.config;
  const int64_t tp = layout.tensor_parallel();
  const int64_t kv = std::max(config.kv_heads, std::min(tp, config.heads)) * config.head_dim;
  const int64_t attention = config.heads * config.head_dim;
  const int64_t inner = (config.mlp == MlpKind::kSwiglu ? 3 : 2) * config.intermediate;
  return TokensOf(layout, model_.sequence) * ElementBytes(layout) *
         ((2 * attention + 2 * kv + inner) / tp + 4 * config.hidden);
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
  const int64_t tile = TileBytes(layout);
  const int64_t one = Brought(layer, tile), two = Brought(2 * layer, tile);
  const int64_t out = tied > 0 ? head : Brought(head, tile);
  const int64_t layer_work = kept.again + LayerWorkBytes(model_, layout);
  const int64_t first_work =
      std::max(stage.head ? LossBytes(model_, layout) : int64_t{0}, layer_work);
  // When all gradients are there, other passes hold theirs, or nothing is held any more.
  const bool steady = m * layout.interleave() > kept.passes;
  const int64_t later = steady ? kept.kept : kept.kept - kept.one_pass;
  const Away away(layout.offload());
  const auto there = [&](int64_t activations) {
    return Staying(activations, away.activations, kept.one_layer);
  };
  // Whole weights stay with ZeRO 1 and 2, and the masters rest with the moments.
  const bool masters = zero == 1 || zero == 2;
  const int64_t weights = InWeights(layout, whole), weight_share = weights / shards;
  const int64_t moments = 2 * whole / shards;
  Peak peak(moments - Part(away.optimizer, moments) + weight_share -
                Part(masters ? away.optimizer : away.weights, weight_share) +
                (masters ? weights : 0),
            weights);
  const auto brought = [&](int64_t bytes) -> int64_t {
    const int64_t visiting = InWeights(layout, bytes);
    if (zero == 0) return std::min(Part(away.weights, weights), visiting);
    if (zero != 3) return 0;
    return visiting +
           std::min(Part(away.weights, weight_share), InWeights(layout, 2 * layer) / shards);
  };
  // All are fetched before the first is gathered.
  if (masters) peak.Moment(0, 0, 0, Part(away.optimizer, weight_share));
  const bool split = SplitsBackward(layout);
  if (zero == 0 || (zero == 1 && m > 1)) {
    // Gradients that rest elsewhere come back to be added to, where weights' gradients are
    // computed.
    const double gone = zero == 0 ? away.gradients : 0;
    const int64_t passing = m > 1 ? kPassingLayers * layer : std::max(2 * layer, embedding);
    const bool accumulated = m > 1 && layout.schedule() != "gpipe";
    const int64_t most =
        zero == 1 ? GradientsAtOnce(layout, whole, std::max(head, embedding)) : whole;
    const int64_t first = accumulated ? most : std::min(most, std::max(head, layer));
    peak.Moment(brought(out + one), Staying(first, gone, split ? head : head + passing),
                there(kept.kept), first_work);
    peak.Moment(split ? 0 : brought(one),
                Staying(most, gone, m > 1 ? passing + embedding : passing),
                there(later > 0 ? later : std::min(kept.kept, kept.whole)),
                split && gone > 0 ? 0 : layer_work);
    return peak.most();
  }
  // Gradients are scattered as they come: in their shards are those of earlier passes.
  const int64_t shard = Staying(whole / shards, away.gradients, (embedding + 2 * layer) / shards);
  const int64_t sums = m > 1 ? shard : 0;
  const auto parts = [&](int64_t bytes) { return m > 1 ? bytes / shards : 0; };
  const auto arrived = [whole](int64_t bytes) { return std::min(whole, bytes); };
  peak.Moment(brought(out + one), arrived(sums + std::max(out, one)), there(kept.kept), first_work);
  const int64_t but_two = std::max<int64_t>(0, kept.kept - 2 * kept.one_layer);
  if (split) peak.Moment(brought(two), sums, there(but_two), layer_work);
  peak.Moment(split ? 0 : brought(two), arrived(sums + tied + two) + parts(two), there(but_two),
              split ? 0 : layer_work);
  // Where chunks are short the next pass over one is at work when an embedding's gradient leaves.
  const bool chunks = layout.interleave() > 1;
  const int64_t tables = chunks && m > 1 && FirstChunkLayers(layout, stage.layers) <= kRetiredLayers
                             ? 2 * embedding
                             : embedding;
  peak.Moment(split ? 0 : brought(m > 1 ? embedding + two : two),
              arrived(shard + embedding + two) + tables - embedding + parts(tables + two),
              there(std::max<int64_t>(0, kept.kept - kept.one_pass)), chunks ? layer_work : 0);
  return peak.most();
}

MemoryEstimate MemoryEstimator::StageMemory(const v1::Layout& layout, const EstimatedStage& stage,
                                            const RecomputeCounts* counts) const {
  const Activations kept = ActivationsOf(layout, stage, counts);
  MemoryEstimate memory = OnDevice(layout, stage, kept);
  if (layout.has_offload()) AddOtherTiers(layout, stage, kept, &memory);
  return memory;
}

// A ring for each operand that the host updates and that does not rest there, one for what comes
// from NVMe and one for what goes there.
MemoryEstimator::Staging MemoryEstimator::StagingBytes(const v1::Layout& layout,
                                                       int64_t share) const {
  constexpr int64_t kRingBuffers = 4;
  const v1::Offload& offload = layout.offload();
  const auto on_nvme = [](const v1::TierShares& shares) { return shares.nvme() > 0; };
  const auto partly = [](const v1::TierShares& shares) { return shares.host() < 1; };
  const bool updates = offload.optimizer().host() + offload.optimizer().nvme() > 0;
  const bool masters_there = layout.zero_stage() == 1 || layout.zero_stage() == 2;
  const v1::TierShares& weights = masters_there ? offload.optimizer() : offload.parameter();
  const int64_t passing = (on_nvme(offload.parameter()) || on_nvme(offload.activation()) ? 1 : 0) +
                          (on_nvme(offload.gradient()) || on_nvme(offload.activation()) ? 1 : 0);
  const int64_t rings = (updates && partly(offload.gradient()) ? 1 : 0) +
                        (updates && partly(weights) ? 1 : 0) +
                        (on_nvme(offload.optimizer()) ? 2 : 0) + passing;
  // A piece is of one parameter, with ZeRO of a layer's or a table's shard.
  const ModelConfig& config = model_.config;
  const int64_t of_layer =
      layout.zero_stage() > 0
          ? model_.layer_parameters
          : config.hidden * std::max((config.mlp == MlpKind::kSwiglu ? 2 : 1) * config.intermediate,
                                     (config.heads + 2 * config.kv_heads) * config.head_dim);
  const int64_t largest = kF32Bytes * std::max(of_layer, config.vocabulary * config.hidden) /
                          layout.tensor_parallel() / ShardRanks(layout);
  const int64_t ring = kRingBuffers * std::min({layout.chunk_bytes(), largest, share});
  // Without ZeRO the rings of the passes are in use until the step ends.
  const int64_t of_step = rings - (layout.zero_stage() > 0 ? passing : 0);
  return {.of_passes = passing * ring, .of_step = of_step * ring};
}

void MemoryEstimator::AddOtherTiers(const v1::Layout& layout, const EstimatedStage& stage,
                                    const Activations& kept, MemoryEstimate* memory) const {
  const v1::Offload& offload = layout.offload();
  const int64_t whole = kF32Bytes * stage.parameters / layout.tensor_parallel();
  const int64_t share = whole / ShardRanks(layout);
  const auto add = [memory](int64_t bytes, const v1::TierShares& shares) {
    memory->host_bytes += Part(shares.host(), bytes);
    memory->nvme_bytes += Part(shares.nvme(), bytes);
  };
  const bool masters = layout.zero_stage() == 1 || layout.zero_stage() == 2;
  add(2 * share, offload.optimizer());
  add(InWeights(layout, share), masters ? offload.optimizer() : offload.parameter());
  add(layout.zero_stage() == 0 ? whole : share, offload.gradient());
  // The optimizer's rings are used when no activations are held.
  const Staging staging = StagingBytes(layout, share);
  memory->nvme_bytes += Part(offload.activation().nvme(), kept.kept);
  memory->host_bytes +=
      std::max(Part(offload.activation().host(), kept.kept) + staging.of_passes, staging.of_step);
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
