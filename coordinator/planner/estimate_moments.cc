// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/estimate_moments.h"

#include <algorithm>

#include "coordinator/layout/precision.h"
#include "coordinator/layout/rules.h"
#include "coordinator/planner/estimate_work.h"

namespace terrace {
namespace {

// Gradients that rest elsewhere come back so that later passes add to them: those of so many layers
// are on the device at once.
constexpr int64_t kPassingLayers = 4;

// So many layers after it began a reduction, the computation waits for its end: then the memory is
// taken back (compiler/streams.h), and the sums are used up (compiler/reduction.h).
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

// With ZeRO 1 the gradients of a chunk leave when its last pass ends. Passes in runs end chunk by
// chunk, interleaved ones where there are no more micro-batches than stages.
int64_t GradientsAtOnce(const v1::Layout& layout, int64_t whole, int64_t table) {
  const bool by_chunk =
      InRuns(layout.schedule()) ||
      (layout.schedule() == "interleaved" && layout.micro_batches() <= layout.pipeline_parallel());
  return by_chunk ? std::min(whole, whole / layout.interleave() + table) : whole;
}

// Of the first stage's first chunk, whose embedding's gradients leave.
int64_t FirstChunkLayers(const v1::Layout& layout, int64_t stage_layers) {
  return layout.stage_layers().empty() ? stage_layers / layout.interleave()
                                       : int64_t{layout.stage_layers(0)};
}

// Bytes on the device of a class of memory of which the part `away` rests elsewhere: what stays,
// and at most `passing` bytes of the rest on their way through.
int64_t Staying(int64_t bytes, double away, int64_t passing) {
  const int64_t gone = Part(away, bytes);
  return bytes - gone + std::min(gone, passing);
}

// Bytes on the device of weights that are prefetched for a use. Where they are tiled, at most three
// tiles are there at once, and the gradient of one.
int64_t Prefetched(int64_t bytes, int64_t tile_bytes) {
  constexpr int64_t kTilesThere = 4;
  return tile_bytes > 0 ? std::min(bytes, kTilesThere * tile_bytes) : bytes;
}

// Keeps the largest of the moments it is told of.
class Peak {
 public:
  // `gradient_share`: what gradients take relative to those of all weights in f32; `whole_bytes`:
  // of all weights as passes read them.
  Peak(double gradient_share, int64_t state_bytes, int64_t whole_bytes)
      : gradient_share_(gradient_share), states_(state_bytes), whole_(whole_bytes) {}

  // `gradients` in f32 bytes.
  void Moment(int64_t gathered, int64_t gradients, int64_t activations, int64_t workspace) {
    const MemoryEstimate moment = {.state_bytes = states_ + std::min(whole_, gathered),
                                   .gradient_bytes = Part(gradient_share_, gradients),
                                   .activation_bytes = activations,
                                   .workspace_bytes = workspace};
    if (moment.total() > most_.total()) most_ = moment;
  }
  const MemoryEstimate& most() const { return most_; }

 private:
  const double gradient_share_;
  const int64_t states_;
  const int64_t whole_;
  MemoryEstimate most_;
};

// What one rank of a stage has to do with, in f32 bytes of weights or gradients.
class Moments {
 public:
  Moments(const EstimateModel& model, const v1::Layout& layout, const EstimatedStage& stage,
          const HeldActivations& kept)
      : layout_(layout),
        stage_(stage),
        kept_(kept),
        away_(layout.offload()),
        shards_(ShardRanks(layout)),
        whole_(kF32Bytes * stage.parameters / layout.tensor_parallel()),
        trained_(kF32Bytes * stage.trained / layout.tensor_parallel()),
        kept_wholes_(kF32Bytes * stage.kept),
        empty_(kF32Bytes * stage.empty),
        coded_(kF32Bytes * stage.coded / layout.tensor_parallel()),
        coded_share_(CodedShareOfWeights(layout, model.config)),
        layer_(kF32Bytes * model.layer_parameters / layout.tensor_parallel()),
        one_moment_(MomentShare(layout, model.config)),
        moment_share_(stage.moments_each() * one_moment_) {
    const int64_t table = kF32Bytes * model.config.vocabulary * model.config.hidden /
                          int64_t{layout.tensor_parallel()};
    embedding_ = stage.index == 0 ? table : 0;
    exact_ = kF32Bytes * model.ExactParameters(layout, stage) / layout.tensor_parallel();
    exact_frozen_ = model.freezes && model.embedding_trained == 0 ? exact_ : 0;
    head_ = stage.head ? table : 0;
    ties_ = model.config.tied_embeddings;
    tied_ = ties_ ? std::min(head_, embedding_) : 0;
    tied_head_ = ties_ ? head_ : 0;
    chunk_ = layer_ * std::max<int64_t>(1, stage.layers / layout.interleave());
    const int64_t tile = TileBytes(layout);
    one_ = Prefetched(layer_, tile);
    two_ = Prefetched(2 * layer_, tile);
    out_ = tied_ > 0 ? head_ : Prefetched(head_, tile);
    if (InRuns(layout.schedule())) {  // all of a run stays until it ends
      one_ = chunk_, two_ = 2 * chunk_, out_ = head_;
    }
    if (model.NoGradientWaits(layout)) {
      const int64_t unit = InRuns(layout.schedule()) ? chunk_ : layer_;
      const bool leaves = away_.optimizer > 0 || DataRanks(layout) > 1;
      using_up_ = tied_ + (leaves ? kRetiredLayers * unit : 0);
    }
    // The gradients of a round of matrices that are dealt leave together.
    if (shards_ > 1 && stage.updated_layers < stage.layers)
      round_ = shards_ * kF32Bytes * model.whole_parameters;
    if (model.update_factored) kept_exact_ = std::min(kept_wholes_, exact_);
    layer_work_ = kept.again + LayerWorkBytes(model, layout);
    first_work_ = std::max(stage.head ? LossBytes(model, layout) : int64_t{0}, layer_work_);
    update_work_ = UpdateWorkBytes(model, layout);
  }

  MemoryEstimate Largest() {
    Peak peak(stage_.trained_share() * GradientShare(layout_), States(),
              InWeights(layout_, whole_));
    // All shards are fetched, or rounded, before the first is gathered.
    if (WholeFromShards(layout_)) {
      const double made = RoundsWeights(layout_) ? 1 : away_.optimizer;
      peak.Moment(0, 0, 0, Part(made, InWeights(layout_, trained_) / shards_));
    }
    const bool until_the_end =
        layout_.zero_stage() == 0 || (layout_.zero_stage() == 1 && layout_.micro_batches() > 1);
    if (InRuns(layout_.schedule())) {
      GradientsByRun(until_the_end, &peak);
    } else {
      until_the_end ? WholeGradients(&peak) : ScatteredGradients(&peak);
    }
    // Matrices that are updated one by one, as wholes, when the last pass has ended.
    if (update_work_ > 0) peak.Moment(0, Waiting(whole_, layer_), 0, update_work_);
    return peak.most();
  }

 private:
  int64_t States() const {
    const bool masters = MastersRestWithMoments(layout_);
    const int64_t moments = Part(moment_share_, trained_ / shards_);
    const int64_t share = InMasters(layout_, trained_) / shards_;
    return moments - Part(away_.optimizer, moments) + share -
           Part(masters ? away_.optimizer : away_.weights, share) + Frozen() + Lasting() - Saved() +
           Residuals() + Wholes();
  }

  // What tensors that are dealt or kept as wholes take beyond even shares of them.
  int64_t Wholes() const {
    const int64_t moments =
        kF32Bytes * (stage_.kept_moments + (stage_.empty_moments - stage_.kept_moments) / shards_);
    // A weight that every rank keeps and nothing rounds is its own master.
    const int64_t masters = RoundsWeights(layout_) ? kept_wholes_ - kept_exact_ : 0;
    return Part(one_moment_, moments) + InMasters(layout_, masters) +
           InMasters(layout_, empty_ - kept_wholes_) / shards_ + InWeights(layout_, empty_);
  }

  // What codes save of the frozen weights, which Frozen and Lasting count as if decoded.
  int64_t Saved() const {
    const int64_t saved = Part(1 - coded_share_, InWeights(layout_, coded_));
    if (WholeFromShards(layout_)) return saved;
    return saved / shards_ - Part(away_.weights, saved / shards_);
  }

  // Frozen weights that Lasting does not count.
  int64_t Frozen() const {
    if (WholeFromShards(layout_)) return 0;
    const int64_t frozen = whole_ - trained_;
    const int64_t share =
        InMasters(layout_, RoundsWeights(layout_) ? std::min(frozen, exact_frozen_) : frozen) /
        shards_;
    return share - Part(away_.weights, share);
  }

  // Of whole gradients, but for those of a table that two stages share.
  int64_t Residuals() const {
    const bool shares = ties_ && layout_.pipeline_parallel() > 1;
    const int64_t shared = shares ? std::max(head_, embedding_) : 0;
    return Part(stage_.trained_share(), (whole_ - shared) / kF32Bytes * ResidualBytes(layout_));
  }

  // Weights that last from step to step beside their masters, from which they are made.
  int64_t Lasting() const {
    if (WholeFromShards(layout_)) return InWeights(layout_, whole_) + Exact(whole_);
    if (!RoundsWeights(layout_)) return 0;
    const int64_t share = InRounded(layout_, whole_ - std::min(whole_, exact_)) / shards_;
    return share - Part(away_.weights, share);
  }

  // Tables that stay f32: what they take beyond the size of rounded weights, when they are among
  // weights of so many f32 bytes.
  int64_t Exact(int64_t bytes) const {
    if (!RoundsWeights(layout_)) return 0;
    return std::min(bytes, exact_) - InWeights(layout_, std::min(bytes, exact_));
  }

  // Bytes on the device of weights that are prefetched for a use. In: what they take in f32, of
  // which `table` bytes are a table's.
  int64_t Visiting(int64_t bytes, int64_t table = 0) const {
    const int64_t weights = InWeights(layout_, whole_), visiting = InWeights(layout_, bytes);
    // A layer has its frozen weights decoded while it uses them.
    const int64_t decoded = InWeights(layout_, std::min(coded_, layer_));
    if (layout_.zero_stage() == 0)
      return std::max(std::min(Part(away_.weights, weights), visiting), decoded);
    if (layout_.zero_stage() != 3) return decoded;
    return visiting + Exact(table) +
           std::min(Part(away_.weights, weights / shards_),
                    InWeights(layout_, 2 * layer_) / shards_);
  }

  // Of weights that came as codes and are being decoded. In: what they take in f32.
  int64_t Codes(int64_t bytes) const {
    if (GatherFormat(layout_) == nullptr) return 0;
    return Part(GatheredBytes(layout_) / kF32Bytes, bytes);
  }

  int64_t There(int64_t activations) const {
    const double away = away_.activations * (1 - kept_.stays);
    return Staying(std::max<int64_t>(0, activations), away, kept_.one_layer);
  }

  // Of `bytes` of gradients that were made, those that the optimizer has not used up yet.
  // `at_work`: bytes that are being made now.
  int64_t Waiting(int64_t bytes, int64_t at_work) const {
    return using_up_ < 0 ? bytes : std::min(bytes, using_up_ + at_work);
  }

  // They stay until the step ends. Those that rest elsewhere come back to be added to, where
  // weights' gradients are computed.
  void WholeGradients(Peak* peak) const {
    const uint32_t zero = layout_.zero_stage();
    const int64_t m = layout_.micro_batches();
    const bool split = SplitsBackward(layout_);
    const double gone = zero == 0 ? away_.gradients : 0;
    const int64_t passing = m > 1 ? kPassingLayers * layer_ : std::max(2 * layer_, embedding_);
    const bool accumulated = m > 1 && !ForwardFirst(layout_.schedule());
    const int64_t most =
        zero == 1 ? GradientsAtOnce(layout_, whole_ + empty_, std::max(head_, embedding_))
                  : Waiting(whole_, std::max(2 * layer_, embedding_));
    const int64_t first = accumulated ? most : std::min(most, std::max(head_, layer_));
    peak->Moment(Visiting(out_ + one_), Staying(first, gone, split ? head_ : head_ + passing),
                 There(kept_.kept), first_work_);
    // When all are there, other passes hold their activations, or nothing is held any more.
    const bool steady = m * layout_.interleave() > kept_.passes;
    const int64_t later = steady ? kept_.kept : kept_.kept - kept_.one_pass;
    peak->Moment(split ? 0 : Visiting(one_),
                 Staying(most, gone, m > 1 ? passing + embedding_ : passing),
                 There(later > 0 ? later : std::min(kept_.kept, kept_.whole)),
                 split && gone > 0 ? 0 : layer_work_);
  }

  // Chunk by chunk, while the activations of the chunks before wait.
  void GradientsByRun(bool until_the_end, Peak* peak) const {
    const bool zero = layout_.zero_stage() > 0;
    const int64_t chunks = layout_.interleave();
    const double gone = zero ? 0 : away_.gradients;
    const auto gradients = [&](int64_t before, int64_t at_work) {
      if (!zero) {
        return Staying(std::min(whole_, Waiting(before, 0) + at_work), gone, at_work + chunk_);
      }
      return std::min(whole_,
                      Staying(Waiting(before, 0) / shards_, away_.gradients, chunk_ / shards_) +
                          at_work + (until_the_end ? 0 : chunk_));
    };
    const int64_t one_pass = kept_.one_pass;
    // For the first run back the last chunk's weights come again.
    peak->Moment(Visiting(out_ + two_, tied_head_), gradients(0, std::max(head_, chunk_)),
                 There(kept_.kept), first_work_);
    peak->Moment(Visiting(two_), gradients(head_, chunk_), There(kept_.kept - one_pass),
                 layer_work_);
    peak->Moment(Visiting(two_), gradients(whole_ - chunk_ - embedding_, chunk_ + embedding_),
                 There(kept_.kept / chunks - one_pass), layer_work_);
  }

  // They leave as they come: in their shards are those of earlier passes.
  void ScatteredGradients(Peak* peak) const {
    const bool several = layout_.micro_batches() > 1, split = SplitsBackward(layout_);
    const int64_t shard = Staying(Waiting(whole_, embedding_ + 2 * layer_) / shards_,
                                  away_.gradients, (embedding_ + 2 * layer_) / shards_);
    const int64_t sums = several ? shard : 0;
    const auto parts = [&](int64_t bytes) { return several ? bytes / shards_ : 0; };
    // A round leaves while the next is made, and what every rank keeps never becomes a shard.
    const int64_t not_cut = kept_wholes_ - kept_wholes_ / shards_;
    const int64_t wait = 2 * round_ + not_cut;
    // Sums of earlier passes may be there beside all of one pass.
    const int64_t beside = several && wait > 0 ? shard + not_cut : 0;
    const auto arrived = [&](int64_t bytes) { return std::min(whole_ + empty_ + beside, bytes); };
    peak->Moment(Visiting(out_ + one_, tied_head_), arrived(sums + std::max(out_, one_)),
                 There(kept_.kept), first_work_);
    const int64_t but_two = kept_.kept - 2 * kept_.one_layer;
    if (split) peak->Moment(Visiting(two_), sums, There(but_two), layer_work_);
    peak->Moment(split ? 0 : Visiting(two_),
                 arrived(sums + tied_ + two_ + wait) + parts(two_ + round_), There(but_two),
                 split ? 0 : layer_work_);
    // Where chunks are short the next pass over one is at work when an embedding's gradient leaves.
    const bool chunks = layout_.interleave() > 1;
    const bool short_chunks =
        chunks && several && FirstChunkLayers(layout_, stage_.layers) <= kRetiredLayers;
    const int64_t tables = short_chunks ? 2 * embedding_ : embedding_;
    peak->Moment(split     ? 0
                 : several ? Visiting(embedding_ + two_, embedding_) + Codes(embedding_)
                           : Visiting(two_),
                 arrived(shard + embedding_ + two_ + wait) + tables - embedding_ +
                     parts(tables + two_ + round_),
                 There(kept_.kept - kept_.one_pass), chunks ? layer_work_ : 0);
  }

  const v1::Layout& layout_;
  const EstimatedStage& stage_;
  const HeldActivations& kept_;
  const Away away_;
  const int64_t shards_, whole_, trained_;
  const int64_t kept_wholes_, empty_;  // of tensors that are updated as wholes
  const int64_t coded_;
  const double coded_share_;
  const int64_t layer_;
  const double one_moment_, moment_share_;
  int64_t embedding_ = 0, head_ = 0, tied_ = 0;
  bool ties_ = false;                  // the head reads the embedding's table
  int64_t exact_ = 0, tied_head_ = 0;  // tables that stay f32
  int64_t exact_frozen_ = 0;
  int64_t chunk_ = 0;                    // of its layers
  int64_t one_ = 0, two_ = 0, out_ = 0;  // layers, or the head, as they are prefetched
  int64_t round_ = 0;                    // of matrices that are dealt
  int64_t kept_exact_ = 0;               // of `kept_wholes_`
  int64_t layer_work_ = 0, first_work_ = 0, update_work_ = 0;
  int64_t using_up_ = -1;  // gradients that the optimizer has yet to use up; -1: it waits for all
};

}  // namespace

MemoryEstimate LargestMoment(const EstimateModel& model, const v1::Layout& layout,
                             const EstimatedStage& stage, const HeldActivations& kept) {
  return Moments(model, layout, stage, kept).Largest();
}

int64_t Part(double share, int64_t bytes) {
  return static_cast<int64_t>(share * static_cast<double>(bytes));
}

int64_t InRounded(const v1::Layout& layout, int64_t bytes) {
  constexpr int64_t kRoundedBytes = 2;
  return Part(RoundedShare(layout), bytes / kF32Bytes * kRoundedBytes);
}

int64_t InWeights(const v1::Layout& layout, int64_t bytes) {
  return static_cast<int64_t>(static_cast<double>(bytes / kF32Bytes) * WeightBytes(layout));
}

int64_t InMasters(const v1::Layout& layout, int64_t bytes) {
  return bytes / kF32Bytes * MasterBytes(layout);
}

int64_t InGradients(const v1::Layout& layout, int64_t bytes) {
  return bytes / kF32Bytes * GradientBytes(layout);
}

bool WholeFromShards(const v1::Layout& layout) {
  return layout.zero_stage() == 1 || layout.zero_stage() == 2;
}

bool MastersRestWithMoments(const v1::Layout& layout) {
  return WholeFromShards(layout) || RoundsWeights(layout);
}

bool SplitsBackward(const v1::Layout& layout) {
  return layout.schedule() == "zb-h1" || layout.schedule() == "zbv";
}

}  // namespace terrace
