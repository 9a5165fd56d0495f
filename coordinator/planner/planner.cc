// SPDX-License-Identifier: Apache-2.0
#include "coordinator/planner/planner.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "coordinator/planner/degrees.h"
#include "coordinator/planner/estimate.h"
#include "coordinator/planner/layout_rules.h"

namespace terrace {
namespace {

// Small enough to start reducing early in the backward pass, large enough for the link's full rate.
constexpr int64_t kDefaultBucketBytes = int64_t{25} << 20;
// What kAll returns at most: the fastest, and the smallest.
constexpr size_t kProposedMax = 64;

// What the spec and the budget say of every candidate.
v1::Layout Pinned(const v1::JobSpec& spec, const Budget& budget) {
  const v1::LayoutSpec& pinned = spec.layout();
  v1::Layout layout;
  layout.set_precision(spec.train().precision());
  layout.set_bucket_bytes(pinned.bucket_bytes() > 0 ? pinned.bucket_bytes() : kDefaultBucketBytes);
  layout.set_ranks(budget.ranks);
  layout.set_nodes(budget.nodes);
  layout.set_threads_per_rank(budget.threads_per_rank);
  layout.set_recompute(pinned.recompute());
  layout.set_recompute_every(pinned.recompute_every());
  *layout.mutable_recompute_layers() = pinned.recompute_layers();
  layout.set_schedule(pinned.schedule());
  if (pinned.schedule().empty() && pinned.interleave() > 1) layout.set_schedule("interleaved");
  layout.set_interleave(pinned.interleave());
  *layout.mutable_stage_layers() = pinned.stage_layers();
  layout.set_context_type(pinned.context_type());
  layout.set_shard_size(pinned.shard_size());
  layout.set_communication_dtype(pinned.communication_dtype());
  layout.set_persistent_parameters(std::max<int64_t>(0, pinned.persistent_parameters()));
  if (pinned.has_offload()) *layout.mutable_offload() = pinned.offload();
  layout.set_allocator(pinned.allocator());
  layout.set_chunk_bytes(pinned.chunk_bytes());
  layout.set_tile_bytes(std::max<int64_t>(0, pinned.tile_bytes()));
  return layout;
}

struct Saving {  // of memory
  uint32_t zero = 0;
  std::string recompute;
  v1::Offload offload;
};

// What is pinned and, where a class is not, what `proposed` says.
v1::Offload WithPinned(const v1::Offload& pinned, v1::Offload proposed) {
  if (pinned.has_parameter()) *proposed.mutable_parameter() = pinned.parameter();
  if (pinned.has_gradient()) *proposed.mutable_gradient() = pinned.gradient();
  if (pinned.has_optimizer()) *proposed.mutable_optimizer() = pinned.optimizer();
  if (pinned.has_activation()) *proposed.mutable_activation() = pinned.activation();
  return proposed;
}

// In the order of their cost. `recompute` "" leaves what the layout has.
std::vector<Saving> Savings(const v1::JobSpec& spec, Search search) {
  const v1::LayoutSpec& pinned = spec.layout();
  const bool all = search != Search::kPlain;
  std::vector<v1::Offload> offloads = {pinned.offload()};
  if (search == Search::kTiers) {
    for (const v1::Offload& proposed : Offloads(spec.resources().nvme().paths_size() > 0)) {
      offloads.push_back(WithPinned(pinned.offload(), proposed));
    }
  }
  std::vector<uint32_t> zeros = {0};
  if (pinned.zero() >= 0) {
    zeros = {static_cast<uint32_t>(pinned.zero())};
  } else if (all) {
    zeros = {0, 1, 2, 3};
  }
  std::vector<std::string> recomputes = {""};
  if (all && pinned.recompute().empty() && pinned.recompute_layers().empty()) {
    recomputes = {"none", "selective", "block", "sqrt"};
  }
  std::vector<Saving> savings;
  for (const v1::Offload& offload : offloads) {
    for (const std::string& recompute : recomputes) {
      for (const uint32_t zero : zeros) savings.push_back({zero, recompute, offload});
    }
  }
  return savings;
}

// What depends on the degrees and the micro-batch and is not pinned.
void ChooseRest(const v1::LayoutSpec& pinned, const Model& model, int64_t sequence,
                v1::Layout* layout) {
  const int64_t cp = layout->context_parallel(), tp = layout->tensor_parallel();
  if (pinned.context_type().empty() && cp > 1 && sequence % (2 * cp) != 0) {
    layout->set_context_type("ulysses");
  }
  const bool divides = layout->micro_batch() * (sequence / cp) % tp == 0;
  layout->set_sequence_parallel(pinned.sequence_parallel() < 0 ? tp > 1 && divides
                                                               : pinned.sequence_parallel() > 0);
  *layout = Completed(std::move(*layout));
  const int64_t chunks = int64_t{layout->pipeline_parallel()} * layout->interleave();
  // The split is written out where it is not plain to see.
  if (layout->stage_layers().empty() && chunks <= model.config.layers &&
      model.config.layers % chunks != 0) {
    for (const int64_t layers : ChunkLayers(*layout, model.config.layers)) {
      layout->add_stage_layers(static_cast<uint32_t>(layers));
    }
  }
}

// Collects the layouts that CheckLayout passes, and the first refusal.
class Collector {
 public:
  Collector(const v1::JobSpec& spec, const Model& model, const Budget& budget)
      : spec_(spec), model_(model), budget_(budget), estimator_(spec, model) {}

  void Add(const Degrees& degrees, const std::vector<Saving>& savings) {
    const absl::StatusOr<int64_t> batch = RankBatch(spec_.train().global_batch(), degrees.dp);
    if (!batch.ok()) return Refuse(batch.status());
    const auto micro_batches = MicroBatches(spec_.layout(), *batch);
    if (!micro_batches.ok()) return Refuse(micro_batches.status());
    v1::Layout layout = Pinned(spec_, budget_);
    layout.set_data_parallel(static_cast<uint32_t>(degrees.dp));
    layout.set_tensor_parallel(static_cast<uint32_t>(degrees.tp));
    layout.set_pipeline_parallel(static_cast<uint32_t>(degrees.pp));
    layout.set_context_parallel(static_cast<uint32_t>(degrees.cp));
    for (const Saving& saving : savings) {
      if (saving.zero > 0 && spec_.layout().zero() < 0 && degrees.dp * degrees.cp == 1) continue;
      layout.set_zero_stage(saving.zero);
      *layout.mutable_offload() = saving.offload;
      if (!saving.recompute.empty()) layout.set_recompute(saving.recompute);
      for (const int64_t micro_batch : *micro_batches) {
        layout.set_micro_batch(static_cast<uint32_t>(micro_batch));
        layout.set_micro_batches(static_cast<uint32_t>(*batch / micro_batch));
        if (!AddLayout(layout)) break;  // the others break the same rule
      }
    }
  }

  // Fastest first, `most` of them. Without the hopeless, but always with the smallest.
  absl::StatusOr<std::vector<v1::Layout>> Take(size_t most) {
    if (found_.empty()) return refusal_;
    const auto smaller = [](const Found& a, const Found& b) {
      return a.memory.total() < b.memory.total();
    };
    const int64_t smallest =
        std::min_element(found_.begin(), found_.end(), smaller)->memory.total();
    std::stable_sort(found_.begin(), found_.end(),
                     [](const Found& a, const Found& b) { return a.seconds < b.seconds; });
    std::vector<v1::Layout> layouts;
    for (Found& found : found_) {
      const bool hopeless = most < SIZE_MAX && Hopeless(found.memory, spec_, budget_);
      if (found.memory.total() == smallest || (!hopeless && layouts.size() < most)) {
        layouts.push_back(std::move(found.layout));
      }
    }
    return layouts;
  }

 private:
  struct Found {
    double seconds = 0;
    MemoryEstimate memory;
    v1::Layout layout;
  };

  bool AddLayout(v1::Layout layout) {
    ChooseRest(spec_.layout(), model_, spec_.data().sequence_length(), &layout);
    const absl::Status status = CheckLayout(layout, model_, spec_);
    if (!status.ok()) {
      Refuse(status);
      return spec_.layout().sequence_parallel() > 0;  // larger micro-batches may divide
    }
    found_.push_back({.seconds = estimator_.StepSeconds(layout, budget_.profile),
                      .memory = estimator_.Memory(layout)});
    found_.back().layout = std::move(layout);
    return true;
  }
  void Refuse(const absl::Status& status) {
    if (refusal_.ok()) refusal_ = status;
  }

  const v1::JobSpec& spec_;
  const Model& model_;
  const Budget& budget_;
  const Estimator estimator_;
  std::vector<Found> found_;
  absl::Status refusal_;
};

}  // namespace

absl::StatusOr<std::vector<v1::Layout>> Candidates(const v1::JobSpec& spec, const Model& model,
                                                   const Budget& budget, Search search) {
  ASSIGN_OR_RETURN(const std::vector<Degrees> all, DegreesFor(spec.layout(), budget, search));
  const std::vector<Saving> savings = Savings(spec, search);
  Collector collector(spec, model, budget);
  for (const Degrees& degrees : all) collector.Add(degrees, savings);
  return collector.Take(search == Search::kPlain ? SIZE_MAX : kProposedMax);
}

bool Hopeless(const MemoryEstimate& memory, const v1::JobSpec& spec, const Budget& budget) {
  const TierLimits limits = LimitsOf(spec);
  const auto over = [](int64_t bytes, int64_t limit) {
    return limit > 0 && static_cast<double>(bytes) > kHopeless * static_cast<double>(limit);
  };
  return over(memory.total(), budget.device_memory_bytes) ||
         over(memory.host_bytes, limits.host_bytes) || over(memory.nvme_bytes, limits.nvme_bytes);
}

TierLimits LimitsOf(const v1::JobSpec& spec) {
  return {.host_bytes = spec.resources().host_memory(),
          .nvme_bytes = spec.resources().nvme().bytes()};
}

bool OffersTiers(const v1::JobSpec& spec) {
  return spec.resources().host_memory() > 0 || spec.resources().nvme().paths_size() > 0;
}

std::vector<v1::Offload> Offloads(bool to_nvme) {
  std::vector<v1::Offload> offloads(to_nvme ? 4 : 2);
  offloads[0].mutable_optimizer()->set_host(1);
  offloads[1].mutable_optimizer()->set_host(1);
  offloads[1].mutable_parameter()->set_host(1);
  for (size_t i = 2; i < offloads.size(); ++i) {
    const bool all = i == 3;
    v1::Offload& offload = offloads[i];
    offload.mutable_optimizer()->set_nvme(1);
    for (v1::TierShares* shares : {offload.mutable_parameter(), offload.mutable_gradient()}) {
      all ? shares->set_nvme(1) : shares->set_host(1);
    }
  }
  return offloads;
}

uint32_t NodesFor(const v1::JobSpec& spec) {
  const v1::LayoutSpec& layout = spec.layout();
  const v1::ResourceSpec& resources = spec.resources();
  const uint32_t least = std::max<uint32_t>(1, resources.nodes_min());
  if (layout.dp() == 0) return least;
  uint64_t ranks = layout.dp();
  for (const uint64_t degree : {layout.tp(), layout.pp(), layout.cp()}) {
    ranks *= std::max<uint64_t>(1, degree);
  }
  const uint64_t devices = std::max<uint32_t>(1, resources.devices_per_node());
  const uint64_t nodes = (ranks + devices - 1) / devices;
  return static_cast<uint32_t>(
      std::clamp<uint64_t>(nodes, least, std::max(least, resources.nodes_max())));
}

}  // namespace terrace
