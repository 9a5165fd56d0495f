// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/space.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "coordinator/layout/formats.h"
#include "coordinator/layout/parameter_groups.h"
#include "coordinator/layout/precision.h"
#include "coordinator/layout/rules.h"
#include "coordinator/planner/degrees.h"
#include "coordinator/planner/estimate_stages.h"
#include "coordinator/planner/fit.h"

namespace terrace {
namespace {

// Small enough to start reducing early in the backward pass, large enough for the link's full rate.
constexpr int64_t kDefaultBucketBytes = int64_t{25} << 20;
// The bytes of a bucket take at least so many times its messages' latency.
constexpr double kBucketLatencies = 10;
constexpr int64_t kBucketsMin = 4;
// More chunks a stage gain little over the bubble that is left.
constexpr uint32_t kInterleaveMax = 8;
// Of breadth_first on one stage, where more chunks cost nothing; what a spec may ask for.
constexpr int64_t kChunksMax = 256;

// formats.parameter. What is frozen has no master: where it is most of the model, weights as
// products read them take fewer bytes on every layout.
std::string ParameterFormat(const v1::JobSpec& spec, const Model& model) {
  const bool chosen =
      spec.formats().parameter().empty() && !spec.train().optimizer().stochastic_rounding();
  const bool frozen = 2 * FrozenParameters(spec.train().optimizer(), model) > model.Parameters();
  return chosen && frozen ? std::string(ProductFormat(spec.train().precision()))
                          : spec.formats().parameter();
}

// What the spec and the budget say of every layout.
v1::Layout Pinned(const v1::JobSpec& spec, int64_t layers, const Budget& budget) {
  const v1::LayoutSpec& pinned = spec.layout();
  v1::Layout layout;
  SetPrecisions(spec.train(), layers, &layout);
  layout.set_stochastic_rounding(spec.train().optimizer().stochastic_rounding());
  layout.set_optimizer(std::string(OptimizerName(spec.train().optimizer())));
  layout.set_bucket_bytes(pinned.bucket_bytes() > 0 ? pinned.bucket_bytes() : kDefaultBucketBytes);
  layout.set_ranks(budget.ranks);
  layout.set_nodes(budget.nodes);
  layout.set_threads_per_rank(budget.threads_per_rank);
  layout.set_device(budget.device);
  layout.set_recompute(pinned.recompute());
  layout.set_recompute_every(pinned.recompute_every());
  *layout.mutable_recompute_layers() = pinned.recompute_layers();
  layout.set_schedule(pinned.schedule());
  if (pinned.schedule().empty() && pinned.interleave() > 1) layout.set_schedule("interleaved");
  layout.set_interleave(pinned.interleave());
  *layout.mutable_stage_layers() = pinned.stage_layers();
  layout.set_context_type(pinned.context_type());
  layout.set_shard_size(pinned.shard_size());
  layout.set_reduce_block(pinned.reduce_block());
  layout.set_gradient_format(spec.formats().gradient());
  layout.set_reduce_format(ReduceFormat(spec));
  layout.set_moments_format(spec.formats().moments());
  layout.set_activation_format(spec.formats().activation());
  layout.set_gather_format(spec.formats().gather());
  layout.set_residual_format(spec.formats().residual());
  layout.set_frozen_format(spec.formats().frozen());
  layout.set_persistent_parameters(std::max<int64_t>(0, pinned.persistent_parameters()));
  if (pinned.has_offload()) *layout.mutable_offload() = pinned.offload();
  layout.set_allocator(pinned.allocator());
  layout.set_chunk_bytes(pinned.chunk_bytes());
  layout.set_tile_bytes(std::max<int64_t>(0, pinned.tile_bytes()));
  return layout;
}

class Walk {
 public:
  Walk(const v1::JobSpec& spec, const Model& model, const Budget& budget, Search search,
       const std::function<bool(const v1::Layout&)>& found)
      : spec_(spec),
        pinned_(spec.layout()),
        model_(model),
        budget_(budget),
        all_(search != Search::kPlain),
        tiers_(search == Search::kTiers),
        found_(found),
        of_model_(spec, model),
        parameter_format_(ParameterFormat(spec, model)) {}

  void Add(const Degrees& degrees) {
    const absl::StatusOr<int64_t> batch = RankBatch(spec_.train(), degrees.dp);
    if (!batch.ok()) return Refuse(batch.status());
    const auto micro_batches = MicroBatches(pinned_, spec_.train(), *batch);
    if (!micro_batches.ok()) return Refuse(micro_batches.status());
    v1::Layout layout = Pinned(spec_, model_.config.layers, budget_);
    layout.set_parameter_format(parameter_format_);
    layout.set_data_parallel(static_cast<uint32_t>(degrees.dp));
    layout.set_tensor_parallel(static_cast<uint32_t>(degrees.tp));
    layout.set_pipeline_parallel(static_cast<uint32_t>(degrees.pp));
    layout.set_context_parallel(static_cast<uint32_t>(degrees.cp));
    ChooseChunks(&layout);
    for (const v1::Layout& scheduled : Schedules(layout)) {
      for (const v1::Layout& split : Contexts(scheduled)) AddBatches(split, *batch, *micro_batches);
    }
  }

  // Nobody wants more.
  bool ended() const { return ended_; }

  bool any() const { return any_; }
  absl::Status Result() const { return any_ ? absl::OkStatus() : refusal_; }

 private:
  void AddBatches(v1::Layout layout, int64_t batch, const std::vector<int64_t>& micro_batches) {
    for (const int64_t micro_batch : micro_batches) {
      if (ended_) return;
      if (all_ && pinned_.schedule().empty() && !Fills(layout, batch / micro_batch)) continue;
      layout.set_micro_batch(static_cast<uint32_t>(micro_batch));
      layout.set_micro_batches(static_cast<uint32_t>(batch / micro_batch));
      if (!Pays(layout)) continue;
      bool passed = false;
      for (const v1::Layout& shared : Sharings(layout)) {
        for (const v1::Layout& formatted : Formats(shared)) {
          if (!ended_) passed |= AddOne(formatted);
        }
      }
      // The others break the same rule, unless it is about the tokens of a micro-batch.
      if (!passed && pinned_.sequence_parallel() <= 0) break;
    }
  }

  // One layer each, so that what is prefetched for a layer goes before the next one's comes.
  void ChooseChunks(v1::Layout* layout) const {
    if (!InRuns(layout->schedule()) || layout->interleave() > 0) return;
    const int64_t pp = layout->pipeline_parallel();
    const int64_t chunks = layout->stage_layers().empty() ? model_.config.layers / pp
                                                          : layout->stage_layers_size() / pp;
    layout->set_interleave(static_cast<uint32_t>(std::clamp<int64_t>(chunks, 1, kChunksMax)));
  }

  // Schedules for small bubbles need as many micro-batches as it takes to fill the stages: with
  // fewer, 1f1b is as good. A run has several.
  static bool Fills(const v1::Layout& layout, int64_t micro_batches) {
    const int64_t stages = layout.pipeline_parallel();
    if (InRuns(layout.schedule())) return micro_batches > 1;
    if (layout.schedule() == "zbv") return micro_batches >= 2 * stages - 1;
    if (layout.schedule() == "interleaved") return micro_batches % stages == 0;
    return layout.schedule() != "zb-h1" || micro_batches >= stages;
  }

  // Runs prefetch weights, and sum or send gradients, once for all micro-batches. Of stages that
  // prefetch and sum nothing interleaved is as fast where it is possible, and holds less.
  bool Pays(const v1::Layout& layout) const {
    if (!pinned_.schedule().empty() || !InRuns(layout.schedule())) return true;
    const bool several = layout.pipeline_parallel() > 1;
    const bool alone = DataRanks(layout) == 1 && !tiers_ && !layout.has_offload();
    return !several || !alone || layout.micro_batches() % layout.pipeline_parallel() != 0;
  }

  bool AddOne(v1::Layout layout) {
    ChooseRest(&layout);
    const absl::Status status = CheckLayout(layout, model_, spec_);
    if (!status.ok()) {
      Refuse(status);
      return false;
    }
    // A larger micro-batch may be short enough.
    if (const absl::Status length =
            CheckLayerPasses(layout, model_.config.layers, CompiledMicroBatches(layout));
        !length.ok()) {
      Refuse(length);
      return true;
    }
    any_ = true;
    ended_ = !found_(layout);
    return true;
  }

  std::vector<v1::Layout> Schedules(const v1::Layout& layout) const {
    std::vector<v1::Layout> schedules;
    const auto add = [&](const char* schedule, uint32_t chunks) {
      schedules.push_back(layout);
      schedules.back().set_schedule(schedule);
      schedules.back().set_interleave(chunks);
      ChooseChunks(&schedules.back());
    };
    if (!all_ || !layout.schedule().empty()) {
      schedules.push_back(layout);
      return schedules;
    }
    const uint32_t pp = layout.pipeline_parallel();
    add("1f1b", 0);
    add("breadth_first", 0);
    if (pp == 1) return schedules;
    add("zb-h1", 0);
    add("zbv", 0);
    const uint32_t most = schedules[1].interleave();  // a layer each
    for (uint32_t chunks = 2; chunks <= kInterleaveMax && pp * chunks <= model_.config.layers;
         ++chunks) {
      add("interleaved", chunks);
      // A layer each has the smallest bubble and prefetches the least at a time, two send the
      // fewest messages.
      const bool is_power = (chunks & (chunks - 1)) == 0;
      if (chunks < most && is_power) add("breadth_first", chunks);
    }
    return schedules;
  }

  std::vector<v1::Layout> Contexts(const v1::Layout& layout) const {
    std::vector<v1::Layout> contexts = {layout};
    if (!all_ || layout.context_parallel() == 1 || !layout.context_type().empty()) return contexts;
    contexts[0].set_context_type("ring");
    if (spec_.data().samples() == "packed") return contexts;
    contexts.push_back(layout);
    contexts[1].set_context_type("ulysses");
    return contexts;
  }

  // ZeRO stages, over all ranks and over those of a node.
  std::vector<v1::Layout> Sharings(const v1::Layout& layout) const {
    std::vector<v1::Layout> sharings;
    const uint32_t ranks = layout.data_parallel() * layout.context_parallel();
    for (uint32_t zero = 0; zero <= 3; ++zero) {
      if (pinned_.zero() >= 0 ? zero != static_cast<uint32_t>(pinned_.zero())
                              : zero > 0 && (!all_ || ranks == 1)) {
        continue;
      }
      sharings.push_back(layout);
      sharings.back().set_zero_stage(zero);
      const uint32_t of_node =
          budget_.ranks / budget_.nodes / layout.tensor_parallel() / layout.context_parallel();
      const bool nodes = all_ && zero > 0 && pinned_.shard_size() == 0 && of_node > 1 &&
                         of_node < layout.data_parallel() && layout.data_parallel() % of_node == 0;
      if (!nodes) continue;
      sharings.push_back(sharings.back());
      sharings.back().set_shard_size(of_node);
    }
    return sharings;
  }

  // Weights in 16 bits are faster to read and to prefetch. Beside masters that nothing shares, or
  // where they rest off the device, they take memory. Which of what is moved because it does not
  // fit is decided where it is moved (planner_compare_away.cc).
  std::vector<v1::Layout> Formats(const v1::Layout& layout) const {
    std::vector<v1::Layout> formats = {layout};
    const std::string products(ProductFormat(layout.precision()));
    if (!all_ || !layout.parameter_format().empty() || layout.stochastic_rounding() ||
        products == "f32") {
      return formats;
    }
    const bool converts = DataRanks(layout) == 1 && budget_.device == "cuda" && !tiers_;
    const bool comes = FarthestTier(layout.offload().parameter()) != v1::DEVICE;
    const bool whole = layout.zero_stage() == 0;
    if (whole ? !comes && !converts : layout.zero_stage() < 3 || !comes) return formats;
    formats[0].set_parameter_format(products);
    formats.push_back(layout);
    formats[1].set_parameter_format("f32");
    return formats;
  }

  // What depends on the degrees and the micro-batch and is not pinned.
  void ChooseRest(v1::Layout* layout) const {
    const int64_t cp = layout->context_parallel(), tp = layout->tensor_parallel();
    const int64_t sequence = spec_.data().sequence_length();
    const bool packed = spec_.data().samples() == "packed";
    if (layout->context_type().empty() && cp > 1 && sequence % (2 * cp) != 0 && !packed) {
      layout->set_context_type("ulysses");
    }
    const bool divides = layout->micro_batch() * (sequence / cp) % tp == 0;
    layout->set_sequence_parallel(
        pinned_.sequence_parallel() < 0 ? tp > 1 && divides : pinned_.sequence_parallel() > 0);
    *layout = Completed(std::move(*layout));
    ChooseReduceBlock(layout);
    // Where codes are only allowed, layouts without them lose nothing.
    if (ReduceCodes(*layout) == nullptr && ReduceFormat(spec_).empty())
      layout->clear_residual_format();
    if (layout->stage_layers().empty()) ChooseSplit(layout);
    if (pinned_.bucket_bytes() == 0) ChooseBuckets(layout);
  }

  // Written out where it is not plain to see.
  void ChooseSplit(v1::Layout* layout) const {
    const int64_t layers = model_.config.layers;
    const int64_t chunks = int64_t{layout->pipeline_parallel()} * layout->interleave();
    if (chunks == 1 || chunks > layers) return;
    const double head = 6.0 * static_cast<double>(model_.config.hidden * model_.config.vocabulary);
    const double layer = (of_model_.flops_per_token - head) / static_cast<double>(layers);
    const std::vector<int64_t> even = ChunkLayers(*layout, layers);
    std::vector<int64_t> split = all_ ? BalancedLayers(chunks, layers, head / layer) : even;
    // The head counts where it shortens the last chunk.
    if (split.back() >= even.back()) split = even;
    if (layers % chunks == 0 && split == even) return;
    for (const int64_t count : split) layout->add_stage_layers(static_cast<uint32_t>(count));
  }

  // The ranks of a node, where there are several of them and several nodes.
  void ChooseReduceBlock(v1::Layout* layout) const {
    if (ReduceCodes(*layout) == nullptr) return layout->set_reduce_block(0);
    if (pinned_.reduce_block() > 0) return;
    const uint32_t of_node = budget_.ranks / std::max(1u, budget_.nodes) /
                             layout->tensor_parallel() / layout->context_parallel();
    if (IsReduceBlock(*layout, of_node)) layout->set_reduce_block(of_node);
  }

  // Large enough for many ranks' latencies, but several to a step.
  void ChooseBuckets(v1::Layout* layout) const {
    const int64_t ranks = DataRanks(*layout);
    if (layout->zero_stage() > 0 || ranks == 1) return;
    const v1::HardwareProfile& profile = budget_.profile;
    const double latency = static_cast<double>(ranks) * profile.link_latency_seconds();
    const auto enough =
        static_cast<int64_t>(kBucketLatencies * latency * profile.link_bytes_per_second());
    const int64_t gradients = GradientBytes(*layout) * of_model_.layer_parameters *
                              model_.config.layers / layout->tensor_parallel() /
                              layout->pipeline_parallel();
    const int64_t most = gradients / kBucketsMin >> 20 << 20;
    layout->set_bucket_bytes(std::max(kDefaultBucketBytes, std::min(most, enough >> 20 << 20)));
  }

  void Refuse(const absl::Status& status) {
    if (refusal_.ok()) refusal_ = status;
  }

  const v1::JobSpec& spec_;
  const v1::LayoutSpec& pinned_;
  const Model& model_;
  const Budget& budget_;
  const bool all_, tiers_;
  const std::function<bool(const v1::Layout&)>& found_;
  const EstimateModel of_model_;
  const std::string parameter_format_;
  bool any_ = false, ended_ = false;
  absl::Status refusal_;
};

}  // namespace

absl::Status ForEachLayout(const v1::JobSpec& spec, const Model& model, const Budget& budget,
                           Search search, const std::function<bool(const v1::Layout&)>& found) {
  ASSIGN_OR_RETURN(const std::vector<Degrees> all, DegreesFor(spec.layout(), budget, search));
  // Who pins a ZeRO stage wants ranks that share: others only where there are none.
  if (spec.layout().zero() > 0) {
    Walk sharing(spec, model, budget, search, found);
    for (const Degrees& degrees : all) {
      if (!sharing.ended() && degrees.dp * degrees.cp > 1) sharing.Add(degrees);
    }
    if (sharing.any()) return absl::OkStatus();
  }
  Walk walk(spec, model, budget, search, found);
  for (const Degrees& degrees : all) {
    if (!walk.ended()) walk.Add(degrees);
  }
  return walk.Result();
}

}  // namespace terrace
