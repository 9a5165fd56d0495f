// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/reduction.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/compiler/buckets.h"
#include "coordinator/compiler/coded_sum.h"
#include "coordinator/compiler/graph/last_uses.h"
#include "coordinator/compiler/state/insertions.h"

namespace terrace::compiler {
namespace {

using kernels::DType;
using kernels::Op;

// So many layers after a shard arrived it is added to those of earlier passes: by then the link has
// had time.
constexpr int kAddAfterMarks = 2;

// A summed gradient is used up so many layers later, not counting those of further micro-batches
// that go through the same chunk.
constexpr int kUseUpAfterTurns = 2;

class Reducer {
 public:
  Reducer(const StageContext& context, const AtOnce* at_once, Builder* builder)
      : grid_(context.parallel.grid),
        groups_(context.parallel.groups),
        parameters_(context.parameters),
        in_bf16_(context.layout.reduce_format() == "bf16"),
        codes_(ReduceCodes(context.layout)),
        codes_of_sums_(CodesOfSums(context.layout)),
        tiers_(context.layout.offload().gradient()),
        at_once_(at_once),
        builder_(*builder),
        graph_(builder->graph()),
        nodes_(builder->nodes()) {}

  void Buckets(const ParameterGradients& gradients, int64_t bucket_bytes) {
    const std::vector<Bucket> buckets =
        MakeBuckets(parameters_, gradients, bucket_bytes, builder_.sequence(), &graph_);
    for (const Bucket& bucket : buckets) {
      const Slice all = graph_.Whole(bucket.value);
      const std::string name = absl::StrCat("bucket ", bucket.number);
      for (const BucketPadding& padding : bucket.padding) {
        Insert(padding.after, {.what = Compute{Op::kFill, kernels::FillAttrs{}},
                               .operands = {padding.slice},
                               .text = "padding of " + name});
      }
      size_t sums = SumOverTensor(bucket.sums, bucket.last_writer, all, name);
      const v1::Tier tier = TierOf(bucket.value, bucket.streamed);
      size_t end = SumOverData(groups_.data, bucket.last_writer, all, name, &sums);
      if (bucket.sums.tied) {
        end = AfterPasses(tier, end);
        sums += AllReduce(groups_.tied, end, all, name);
      }
      reduced_.push_back({.value = bucket.value,
                          .number = bucket.number,
                          .name = name,
                          .final_after = end,
                          .is_local = sums == 0,
                          .used_up = at_once_ != nullptr && !bucket.sums.tied,
                          .copies = bucket.sums.copies,
                          .tier = tier});
    }
  }

  std::map<int, int> Shards(const GradientScopes& scopes) {
    std::vector<Finished> finished;
    for (const auto& scope : scopes.all()) {
      for (const auto& [unit, value] : scope->by_unit())
        finished.push_back({LastWriter(value), unit, value});
    }
    std::sort(finished.begin(), finished.end(), [](const Finished& a, const Finished& b) {
      return std::pair(a.last_writer, a.value) < std::pair(b.last_writer, b.value);
    });
    std::map<int, int> left;  // by unit
    for (const Finished& f : finished) ++left[f.unit];
    std::map<int, int> shards;  // by unit
    for (const Finished& f : finished) {
      size_t end = Scatter(f, &shards);
      if (--left[f.unit] > 0) continue;
      const Unit& unit = parameters_.units()[f.unit];
      const v1::Tier tier = TierOf(shards.at(f.unit), unit.of_matrices);
      if (unit.sums.tied) end = AfterPasses(tier, end);
      Complete(f.unit, shards.at(f.unit), end);
      reduced_.push_back({.value = shards.at(f.unit),
                          .number = -f.unit,
                          .unit = f.unit,
                          .name = unit.name,
                          .final_after = end,
                          .used_up = at_once_ != nullptr && !unit.sums.tied,
                          .copies = CopiesOf(unit),
                          .tier = tier});
    }
    return shards;
  }

  // The gradients that rest off the device. REQUIRES: Finish was called.
  std::vector<Offloaded> OffloadedGradients() const {
    std::vector<Offloaded> offloaded;
    for (const Reduced& reduced : reduced_) {
      if (reduced.tier == v1::DEVICE) continue;
      offloaded.push_back(
          {.value = reduced.value, .tier = reduced.tier, .needed_after = !reduced.used_up});
    }
    return offloaded;
  }

  // The gradients that an update has read already. REQUIRES: Finish was called.
  std::set<int> UsedUp() const {
    std::set<int> values;
    for (const Reduced& reduced : reduced_) {
      if (reduced.used_up) values.insert(reduced.value);
    }
    return values;
  }

  // What is final without any other rank is squared at once, while it is in the cache. The rest
  // comes after the passes: these would wait for the reductions otherwise. What leaves the device
  // is squared before, when its reduction has had time. What is used up is squared then.
  Slice Finish() {
    std::sort(reduced_.begin(), reduced_.end(),
              [](const Reduced& a, const Reduced& b) { return a.number < b.number; });
    const auto count = static_cast<int64_t>(reduced_.size());
    const Slice squares =
        builder_.NewValue("squares", v1::ACTIVATION, DType::kF32, {std::max<int64_t>(1, count)});
    if (count == 0)
      builder_.Compute(Op::kFill, kernels::FillAttrs{}, {squares}, "nothing trained on this stage");
    std::vector<Node> last;
    for (size_t i = 0; i < reduced_.size(); ++i) {
      const Reduced& reduced = reduced_[i];
      const Slice square = Range(squares, static_cast<int64_t>(i), 1);
      Node node = {
          .what = Compute{Op::kSquaredNorm, kernels::ScaleAttrs{.scale = 1.0f / reduced.copies}},
          .operands = {graph_.Whole(reduced.value), square},
          .phase = v1::OPTIMIZER_STEP,
          .text = "squared norm of " + reduced.name};
      if (reduced.used_up) {
        UseUp(reduced, square, std::move(node));
      } else if (reduced.is_local) {
        insertions_.After(reduced.final_after, std::move(node));
      } else if (reduced.tier != v1::DEVICE) {
        insertions_.After(Later(reduced.final_after), std::move(node));
      } else {
        last.push_back(std::move(node));
      }
    }
    if (at_once_ != nullptr) PutAtStart(*at_once_->at_start);
    insertions_.Apply(&nodes_);
    for (Node& node : last) builder_.Repeat(std::move(node));
    return squares;
  }

 private:
  // A summed gradient, or a shard of one.
  struct Reduced {
    int value = kNone;
    int number = 0;    // its turn in sums over all: the same with every schedule
    int unit = kNone;  // of a shard
    std::string name;
    size_t final_after = 0;
    bool is_local = false;       // nothing had to be summed
    bool used_up = false;        // during the passes
    int copies = 1;              // ranks of the group "model" that hold the same
    v1::Tier tier = v1::DEVICE;  // where it rests until the optimizer
  };

  struct Finished {
    size_t last_writer = 0;
    int unit = 0;
    int value = kNone;
  };

  // Whole pages only.
  v1::Tier TierOf(int value, bool streamed) {
    const int64_t elements = graph_.values[value].elements();
    const bool pages = elements % StreamedElements(graph_.values[value].dtype) == 0;
    return streamed && pages ? tiers_.Next(elements) : v1::DEVICE;
  }

  void UseUp(const Reduced& reduced, Slice square, Node square_node) {
    if (!last_uses_.has_value()) last_uses_.emplace(graph_, nodes_);
    size_t after = reduced.is_local ? reduced.final_after : TurnsLater(reduced.final_after);
    // The gradient of the head may be final before the losses are summed.
    after = std::max(after, LastWriter(at_once_->total));
    for (const int weights : at_once_->weights(reduced.value, reduced.unit)) {
      after = std::max(after, last_uses_->Of(weights));
    }
    std::vector<Node> nodes = {std::move(square_node)};
    builder_.divert = &nodes;
    at_once_->update(reduced.value, reduced.unit, square);
    builder_.divert = nullptr;
    for (Node& node : nodes) insertions_.After(after, std::move(node));
  }

  void PutAtStart(const std::vector<Node>& at_start) {
    const auto loads = [](const Node& node) {
      const auto* input = std::get_if<Input>(&node.what);
      return input != nullptr && input->kind == v1::LOAD_SCHEDULE;
    };
    const auto schedule = std::find_if(nodes_.begin(), nodes_.end(), loads);
    for (const Node& node : at_start) {
      insertions_.After(static_cast<size_t>(schedule - nodes_.begin()), node);
    }
  }

  void Insert(size_t after, Node node) {
    node.phase = v1::BACKWARD;
    insertions_.After(after, std::move(node));
  }

  size_t AllReduce(int group, size_t after, Slice operand, const std::string& name) {
    if (group == kNone) return 0;
    Insert(after, {.what = Collective{v1::ALL_REDUCE, group},
                   .operands = {operand},
                   .text = absl::StrCat("all-reduce ", name)});
    return 1;
  }

  size_t SumOverTensor(const Sums& sums, size_t after, Slice operand, const std::string& name) {
    size_t count = 0;
    if (sums.tensor) count += AllReduce(groups_.tensor, after, operand, name);
    if (sums.tensor_block) count += AllReduce(groups_.tensor_block, after, operand, name);
    return count;
  }

  // The all-reduce of a bucket, or of a unit that every rank keeps, over data-parallel ranks.
  // Returns the index after which it holds the sum.
  size_t SumOverData(int group, size_t after, Slice all, const std::string& name, size_t* sums) {
    if (group == kNone || !IsRounded(all)) {
      *sums += AllReduce(group, after, all, name);
      return after;
    }
    const Slice half = ToBF16(after, all, name);
    *sums += AllReduce(group, after, half, name);
    const size_t later = Later(after);
    Cast(later, half, all, name + " to f32");
    return later;
  }

  void Cast(size_t after, Slice from, Slice to, std::string text) {
    Insert(after, {.what = Compute{Op::kCast, kernels::NoAttrs{}},
                   .operands = {from, to},
                   .text = std::move(text)});
  }

  Slice NewShare(const std::string& name, v1::BufferClass cls, DType dtype, int64_t elements) {
    return graph_.Whole(graph_.Add({.name = name,
                                    .cls = cls,
                                    .dtype = dtype,
                                    .shape = {elements},
                                    .sequence = builder_.sequence()}));
  }

  // On its way over a data-parallel link.
  bool IsRounded(Slice all) const { return in_bf16_ && all.shape.dtype != DType::kBF16; }

  // What goes over the link with reduce_format bf16.
  Slice ToBF16(size_t after, Slice all, const std::string& name) {
    const Slice half =
        NewShare(name + ".bf16", v1::COMMUNICATION, DType::kBF16, all.shape.Elements());
    Cast(after, all, half, name + " to bf16");
    return half;
  }

  size_t LastWriter(int unit_value) {
    if (last_writers_.empty()) {
      for (size_t i = 0; i < nodes_.size(); ++i) {
        for (size_t k = 0; k < nodes_[i].operands.size(); ++k) {
          if (Writes(nodes_[i], static_cast<int>(k))) {
            last_writers_[graph_.Root(nodes_[i].operands[k]).value] = i;
          }
        }
      }
    }
    return last_writers_.at(unit_value);
  }

  // The first node that stands kAddAfterMarks after `index`, or the last one.
  size_t Later(size_t index) const {
    size_t later = index;
    while (later + 1 < nodes_.size() && nodes_[later].mark < nodes_[index].mark + kAddAfterMarks) {
      ++later;
    }
    return later;
  }

  // The first node that stands kUseUpAfterTurns and kAddAfterMarks after `index`, or the last one.
  size_t TurnsLater(size_t index) const {
    size_t later = Later(index);
    while (later + 1 < nodes_.size() &&
           nodes_[later].turn < nodes_[index].turn + kUseUpAfterTurns) {
      ++later;
    }
    return later;
  }

  // Reduces one unit's gradient of one scope into the shard of the step. Returns the index after
  // which the shard holds it.
  size_t Scatter(const Finished& f, std::map<int, int>* shards) {
    const Unit& unit = parameters_.units()[f.unit];
    const Slice all = graph_.Whole(f.value);
    SumOverTensor(unit.sums, f.last_writer, all, "grads." + unit.name);
    if (!unit.sharded()) return SumWhole(f, unit, all, shards);
    const bool first = !shards->contains(f.unit);
    const std::string name = "grads." + unit.name;
    if (first) {
      (*shards)[f.unit] =
          NewShare("grads.shard." + unit.name, v1::GRADIENT, unit.gradient, unit.shard_elements)
              .value;
    }
    const Slice shard = graph_.Whole(shards->at(f.unit));
    if (codes_ != nullptr && unit.of_matrices) return ScatterCodes(f, unit, all, shard, first);
    const bool direct = first && !IsRounded(all);
    const Slice sent = IsRounded(all) ? ToBF16(f.last_writer, all, name) : all;
    const Slice part = direct ? shard
                              : NewShare("grads.part." + unit.name, v1::COMMUNICATION,
                                         sent.shape.dtype, unit.shard_elements);
    Insert(f.last_writer, {.what = Collective{v1::REDUCE_SCATTER, groups_.shard},
                           .operands = {sent, part},
                           .text = "reduce-scatter " + name});
    if (direct) return f.last_writer;
    const size_t later = Later(f.last_writer);
    if (first) {
      Cast(later, part, shard, name + " to f32");
    } else {
      AddToShard(later, part, shard, name);
    }
    return later;
  }

  // The same of a unit that every rank keeps: the sums of all scopes are added to the first's.
  size_t SumWhole(const Finished& f, const Unit& unit, Slice all, std::map<int, int>* sums) {
    const std::string name = "grads." + unit.name;
    size_t count = 0;
    const size_t after = SumOverData(groups_.shard, f.last_writer, all, name, &count);
    const auto [sum, is_first] = sums->try_emplace(f.unit, f.value);
    if (is_first) return after;
    const size_t later = Later(after);
    Insert(later, {.what = Compute{Op::kAdd, kernels::NoAttrs{}},
                   .operands = {all, graph_.Whole(sum->second)},
                   .text = "add to " + name});
    return later;
  }

  // Ranks of the group "model" that hold the same elements of a unit's summed gradient.
  int CopiesOf(const Unit& unit) const {
    const auto ranks = static_cast<int>(ShardCount(grid_));
    return unit.sharded() ? unit.sums.copies : unit.sums.copies * ranks;
  }

  // As Scatter, in codes.
  size_t ScatterCodes(const Finished& f, const Unit& unit, Slice all, Slice shard, bool first) {
    const std::string name = "grads." + unit.name;
    const Slice part = first ? shard
                             : NewShare("grads.part." + unit.name, v1::COMMUNICATION,
                                        shard.shape.dtype, unit.shard_elements);
    const CodedSumOptions options = {
        .levels = CodeLevels(),
        .all = all,
        .part = part,
        .residual = unit.residual == kNone ? Slice() : graph_.Whole(unit.residual),
        .name = name,
        .sequence = builder_.sequence()};
    size_t after = f.last_writer;
    for (bool sent = false; std::vector<Node> & nodes : SumInCodes(options, &graph_)) {
      if (std::exchange(sent, true)) after = Later(after);
      for (Node& node : nodes) Insert(after, std::move(node));
    }
    if (!first) AddToShard(after, part, shard, name);
    return after;
  }

  std::vector<CodedSumLevel> CodeLevels() const {
    const auto level = [this](int group, const kernels::FormatRow* format) {
      return CodedSumLevel{group, GroupSize(grid_, graph_.groups[group]), format};
    };
    if (groups_.near == kNone) return {level(groups_.shard, codes_)};
    return {level(groups_.near, codes_), level(groups_.far, codes_of_sums_)};
  }

  void AddToShard(size_t after, Slice part, Slice shard, const std::string& name) {
    Insert(after, {.what = Compute{Op::kAdd, kernels::NoAttrs{}},
                   .operands = {part, shard},
                   .text = "add to the shard of " + name});
  }

  // Computation waits for what leaves the device, so for the sum before it as well. That over
  // stages ends only when all of them have it: where passes are still to come, they would wait for
  // stages that wait for them.
  size_t AfterPasses(v1::Tier tier, size_t end) const {
    return tier == v1::DEVICE ? end : nodes_.size() - 1;
  }

  void Complete(int unit, int shard, size_t after) {
    const Slice part = graph_.Whole(shard);
    const Unit& u = parameters_.units()[unit];
    const std::string name = absl::StrCat(u.sharded() ? "grads.shard." : "grads.", u.name);
    AllReduce(groups_.replica, after, part, name);
    if (u.sums.tied) AllReduce(groups_.tied, after, part, name);
  }

  const v1::Grid& grid_;
  const Groups& groups_;
  const Parameters& parameters_;
  const bool in_bf16_;                     // layout.reduce_format
  const kernels::FormatRow* const codes_;  // likewise; null: numbers are sent
  const kernels::FormatRow* const codes_of_sums_;
  TierChooser tiers_;
  const AtOnce* const at_once_;
  Builder& builder_;
  Graph& graph_;
  std::vector<Node>& nodes_;
  Insertions insertions_;
  std::map<int, size_t> last_writers_;  // by outermost value
  std::optional<LastUses> last_uses_;
  std::vector<Reduced> reduced_;
};

}  // namespace

Reduction ReduceGradients(const StageContext& context, const GradientScopes& scopes,
                          int64_t bucket_bytes, const AtOnce* at_once, Builder* builder) {
  Reducer reducer(context, at_once, builder);
  Reduction reduction;
  if (context.parallel.zero > 0) {
    reduction.shards = reducer.Shards(scopes);
  } else {
    reducer.Buckets(*scopes.all().at(0), bucket_bytes);
  }
  builder->phase = v1::OPTIMIZER_STEP;
  reduction.squares = reducer.Finish();
  reduction.used_up = reducer.UsedUp();
  std::vector<Offloaded> offloaded = OffloadedActivations(builder->graph(), builder->nodes(),
                                                          context.layout.offload().activation());
  for (const Offloaded& gradient : reducer.OffloadedGradients()) offloaded.push_back(gradient);
  reduction.homes = OffloadValues(offloaded, context.layout.chunk_bytes(), builder);
  return reduction;
}

}  // namespace terrace::compiler
