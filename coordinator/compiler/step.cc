// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/step.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/compiler/reduction.h"
#include "coordinator/compiler/state/insertions.h"
#include "coordinator/compiler/state/weights.h"
#include "coordinator/compiler/tiers/encode.h"
#include "coordinator/compiler/tiers/fetch.h"
#include "coordinator/compiler/tiers/optimizer.h"
#include "coordinator/compiler/tiers/staging.h"
#include "coordinator/layout/dealing.h"
#include "coordinator/layout/formats.h"

namespace terrace::compiler {
namespace {

using kernels::DType;
using kernels::Op;

int AddSequence(const std::string& name, Graph* graph) {
  graph->sequences.push_back({.name = name});
  return static_cast<int>(graph->sequences.size()) - 1;
}

int AddTrain(const TrainOptions& options, Graph* graph) {
  const int sequence = AddSequence(options.name, graph);
  if (options.name != kTrain) graph->sequences[sequence].sequence_length = options.forward.sequence;
  return sequence;
}

// True where a training pass of this stage drops elements.
bool Drops(const StageContext& context) {
  const DropoutConfig& dropout = context.model.config.dropout;
  const bool layers = dropout.residual > 0 || dropout.attention > 0 || dropout.adapter > 0;
  return layers || (dropout.embedding > 0 && context.HasFirst());
}

BatchSlices LoadBatch(const StageContext& context, const ForwardOptions& options, bool drops,
                      Builder* builder) {
  const Dims dims = {options.batch * options.sequence / context.parallel.context()};
  BatchSlices batch;
  if (context.HasFirst()) batch.tokens = builder->NewValue("tokens", v1::INPUT, DType::kI32, dims);
  if (context.HasLast()) batch.targets = builder->NewValue("targets", v1::INPUT, DType::kI32, dims);
  if (drops) batch.places = builder->NewValue("places", v1::INPUT, DType::kI32, {dims.front(), 2});
  if (options.documents)
    batch.starts = builder->NewValue("starts", v1::INPUT, DType::kI32, {dims.front()});
  std::vector<Slice> loaded = {batch.tokens, batch.targets, batch.places, batch.starts};
  while (!loaded.empty() && loaded.back().absent()) loaded.pop_back();
  if (loaded.empty()) return batch;
  loaded.resize(std::max<size_t>(loaded.size(), 2));
  builder->Input(v1::LOAD_BATCH, std::move(loaded), "load batch");
  return batch;
}

// With ZeRO: the weights that are whole in all passes, from their shards. At the start of a step
// they are on their way while the first layers are computed; at its end nothing would hide them.
void GatherWeights(const StageContext& context, Builder* builder) {
  builder->phase = v1::FORWARD;
  Weights weights(context.parameters, context.parallel, context.layout.chunk_bytes(), builder);
  for (const Unit& unit : context.parameters.units()) {
    if (unit.weights != kNone && unit.master != kNone) weights.Restore(unit);
  }
}

// After the last pass: what fetches and copies need.
void FinishCopies(Builder* builder) {
  PlaceFetches(builder->graph(), &builder->nodes());
  AssignStaging(builder->sequence(), &builder->graph());
}

// The totals of a step, or of an evaluation.
struct Totals {
  Slice all;      // what is summed over ranks
  Slice losses;   // {sum of losses, tokens, or of pairs: pairs}
  Slice margins;  // of pairs: {sum of margins, pairs that are the right way round}
};

Totals NewTotals(const char* name, bool pairs, Builder* builder) {
  const Slice all = builder->NewValue(name, v1::ACTIVATION, DType::kF32, {pairs ? 4 : 2});
  if (!pairs) return {.all = all, .losses = all};
  return {.all = all, .losses = Range(all, 0, 2), .margins = Range(all, 2, 2)};
}

// Stages without the loss add nothing to its total.
void ZeroWhereNoLoss(const StageContext& context, Slice total, Builder* builder) {
  if (context.HasLast()) return;
  builder->Compute(Op::kFill, kernels::FillAttrs{}, {total}, "no loss on this stage");
}

// Batches that are loaded when a forward pass begins, besides its own: loading is hidden then, and
// a long step holds no more than these.
constexpr int kLoadAhead = 1;

// Without a reduction nothing gains from large buckets, and small ones live shorter.
constexpr int64_t kLocalBucketBytes = int64_t{4} << 20;

class Train {
 public:
  Train(const StageContext& context, const TrainOptions& options, Graph* graph)
      : context_(context),
        options_(options),
        graph_(*graph),
        builder_(graph, AddTrain(options, graph)),
        passes_(context, options.forward, &builder_),
        gradients_(context.parameters, context.parallel, context.InRuns()) {}

  absl::Status Build() {
    LoadBatches(kLoadAhead);
    LoadSchedule();
    GatherWeights(context_, &builder_);
    if (context_.HasLast()) stats_ = NewStatistics("stats");
    if (context_.HasLast() && Pairs()) margins_ = NewStatistics("margins");
    totals_ = NewTotals("total", Pairs(), &builder_);
    total_ = totals_.losses;
    for (const Pass& pass : options_.schedule) {
      if (MayAskForTotals(pass)) SumStatsOnce();
      RETURN_IF_ERROR(RunPass(pass));
      RETURN_IF_ERROR(CountNodes());
    }
    SumStatsOnce();
    MoveFetchesAhead(graph_, &builder_.nodes());
    if (const kernels::FormatRow* at_rest = ActivationFormat(context_.layout); at_rest != nullptr)
      EncodeActivations(*at_rest, &builder_);
    Optimize();
    RETURN_IF_ERROR(CountNodes());
    FinishCopies(&builder_);
    return absl::OkStatus();
  }

 private:
  bool Pairs() const { return options_.forward.preference.has_value(); }

  // Two numbers of each micro-batch.
  Slice NewStatistics(const char* name) {
    return builder_.NewValue(name, v1::ACTIVATION, DType::kF32, {options_.micro_batches, 2});
  }

  // Those since the last time.
  absl::Status CountNodes() {
    if (options_.nodes_left == nullptr) return absl::OkStatus();
    const auto nodes = static_cast<int64_t>(builder_.nodes().size());
    const int64_t added = nodes - std::exchange(counted_, nodes);
    if (options_.nodes_left->fetch_sub(added) >= added) return absl::OkStatus();
    return absl::ResourceExhaustedError("layout: more instructions than were asked for");
  }

  int64_t BucketBytes() const {
    if (context_.parallel.groups.data != kNone) return options_.bucket_bytes;
    return std::min(options_.bucket_bytes, kLocalBucketBytes);
  }

  // Those up to this one that are not loaded yet.
  void LoadBatches(int last) {
    builder_.phase = v1::FORWARD;
    while (static_cast<int>(batches_.size()) <= std::min(last, options_.micro_batches - 1)) {
      builder_.micro_batch = static_cast<int>(batches_.size());
      batches_.push_back(LoadBatch(context_, options_.forward, Drops(context_), &builder_));
    }
    builder_.micro_batch = kNone;
  }

  void LoadSchedule() {
    builder_.phase = v1::OPTIMIZER_STEP;
    schedule_ = builder_.NewValue("schedule", v1::INPUT, DType::kF32, {4});
    std::vector<Slice> loaded = {schedule_};
    if (context_.parameters.has_short()) {
      step_ = builder_.NewValue("step", v1::INPUT, DType::kI32, {1});
      loaded.push_back(step_);
    }
    builder_.Input(v1::LOAD_SCHEDULE, std::move(loaded), "load schedule");
  }

  absl::Status RunPass(const Pass& pass) {
    switch (pass.kind) {
      case PassKind::kForward:
        RunForward(pass);
        return absl::OkStatus();
      case PassKind::kBackward:
      case PassKind::kBackwardInput:
        return passes_.RunBackward(pass.micro_batch, pass.chunk,
                                   pass.kind == PassKind::kBackwardInput,
                                   &gradients_.Of(pass.micro_batch, pass.chunk));
      case PassKind::kBackwardWeight:
        passes_.RunWeights(pass.micro_batch, pass.chunk);
        return absl::OkStatus();
    }
    return absl::OkStatus();
  }

  void RunForward(const Pass& pass) {
    LoadBatches(pass.micro_batch + kLoadAhead);
    BatchSlices batch = batches_[pass.micro_batch];
    const bool has_loss = context_.ChunkOf(pass.chunk).last;
    if (has_loss) batch.stats = Range(stats_, 2 * pass.micro_batch, 2);
    if (has_loss && Pairs()) batch.margins = Range(margins_, 2 * pass.micro_batch, 2);
    if (has_loss && options_.scales_loss) batch.schedule = schedule_;
    passes_.RunForward(pass.micro_batch, pass.chunk, batch,
                       &gradients_.Of(pass.micro_batch, pass.chunk));
    if (!has_loss) return;
    // The totals are final before the last backward pass starts, so their reduction costs no time.
    if (++losses_ == options_.micro_batches) SumStatsOnce();
  }

  // From the first backward pass on the stage with the loss may wait for the totals, and the passes
  // of this one for what comes from there.
  bool MayAskForTotals(const Pass& pass) const {
    return options_.updates_at_once && !context_.HasLast() && pass.kind != PassKind::kForward;
  }

  void SumStatsOnce() {
    if (std::exchange(summed_, true)) return;
    ZeroWhereNoLoss(context_, totals_.all, &builder_);
    if (context_.HasLast()) {
      builder_.Compute(Op::kSumStats, kernels::NoAttrs{}, {stats_, total_},
                       Pairs() ? "sum of losses and pairs" : "sum of losses and tokens");
    }
    if (context_.HasLast() && Pairs()) {
      builder_.Compute(Op::kSumStats, kernels::NoAttrs{}, {margins_, totals_.margins},
                       "sum of margins");
    }
    builder_.AllReduce(context_.parallel.groups.totals, totals_.all,
                       "all-reduce losses and tokens");
  }

  // Of all gradients of the model: one number when ranks hold different ones.
  Slice AllSquares(Slice squares) {
    const int group = context_.parallel.groups.model;
    if (group == kNone) return squares;
    const Slice sum = builder_.NewValue("squares.sum", v1::ACTIVATION, DType::kF32, {1});
    builder_.Compute(Op::kSum, kernels::NoAttrs{}, {squares, sum}, "sum of squares");
    builder_.AllReduce(group, sum, "all-reduce sum of squares");
    return sum;
  }

  Slice NewScale(const std::string& name) {
    return builder_.NewValue(name, v1::ACTIVATION, DType::kF32, {4});
  }

  // Computes the factor of the gradients whose squares are given.
  void ComputeScale(Slice squares, Slice scale) {
    builder_.Compute(Op::kGradScale, kernels::ClipAttrs{.clip_grad_norm = options_.clip_grad_norm},
                     {squares, total_, scale, options_.scales_loss ? schedule_ : Slice()},
                     "gradient scale");
  }

  void Optimize() {
    builder_.phase = v1::OPTIMIZER_STEP;
    std::vector<Node> at_start;
    Optimizer optimizer(schedule_, step_, context_.layout.chunk_bytes(),
                        options_.updates_at_once ? &at_start : nullptr, &builder_);
    AtOnce at_once = {.weights = [&](int gradient, int unit) { return WeightsOf(gradient, unit); },
                      .total = total_.value,
                      .update =
                          [&](int gradient, int unit, Slice square) {
                            const Slice scale = NewScale("scale.own");
                            ComputeScale(square, scale);
                            UpdateAtOnce(gradient, unit, scale, &optimizer);
                          },
                      .at_start = &at_start};
    const Reduction reduction =
        ReduceGradients(context_, gradients_, BucketBytes(),
                        options_.updates_at_once ? &at_once : nullptr, &builder_);
    const Slice scale = NewScale("scale");
    ComputeScale(AllSquares(reduction.squares), scale);
    if (context_.parallel.zero == 0) {
      // Gradients that rest elsewhere go there from the last parameter to the first: what left
      // last is updated last, and no update waits for its gradient to arrive.
      const int count = static_cast<int>(context_.parameters.all().size());
      for (int i = 0; i < count; ++i) {
        const int index = reduction.homes.empty() ? i : count - 1 - i;
        if (context_.parameters.all()[index].update.frozen) continue;
        if (reduction.used_up.contains(BucketOf(index))) continue;
        Update(index, reduction.homes, scale, &optimizer);
      }
    } else {
      for (const auto& [index, gradient] : reduction.shards) {
        if (reduction.used_up.contains(gradient)) continue;
        UpdateShard(index, gradient, reduction.homes, scale, &optimizer);
      }
    }
    builder_.Output(v1::STEP_STATS, scale, "step statistics");
    if (Pairs()) builder_.Output(v1::PREFERENCE, totals_.margins, "margins");
  }

  // The outermost value of a parameter's gradient, without ZeRO.
  int BucketOf(int parameter) {
    return graph_.Root(graph_.Whole(gradients_.Of(0, 0).by_parameter().at(parameter))).value;
  }

  std::vector<int> ParametersOf(int bucket) {
    if (by_bucket_.empty()) {
      for (int i = 0; i < static_cast<int>(context_.parameters.all().size()); ++i) {
        if (!context_.parameters.all()[i].update.frozen) by_bucket_[BucketOf(i)].push_back(i);
      }
    }
    return by_bucket_.at(bucket);
  }

  std::vector<int> WeightsOf(int gradient, int unit) {
    std::vector<int> weights;
    const auto add = [&](int weight, int rounded) {
      weights.push_back(weight);
      if (rounded != kNone) weights.push_back(rounded);
    };
    if (unit != kNone) {
      const Unit& shared = context_.parameters.units()[unit];
      if (shared.sharded()) {
        add(shared.master, shared.rounded);
        return weights;
      }
    }
    for (const int i :
         unit == kNone ? ParametersOf(gradient) : context_.parameters.units()[unit].parameters) {
      const Parameter& parameter = context_.parameters.all()[i];
      add(parameter.weight, parameter.rounded);
    }
    return weights;
  }

  void UpdateAtOnce(int gradient, int unit, Slice scale, Optimizer* optimizer) {
    if (unit != kNone) return UpdateShard(unit, gradient, /*homes=*/{}, scale, optimizer);
    for (const int i : ParametersOf(gradient)) Update(i, /*homes=*/{}, scale, optimizer);
  }

  // Where a gradient rests.
  Slice AtHome(Slice gradient, const std::map<int, int>& homes) const {
    Slice root = graph_.Root(gradient);
    const auto home = homes.find(root.value);
    if (home != homes.end()) root.value = home->second;
    return root;
  }

  void Update(int index, const std::map<int, int>& homes, Slice scale, Optimizer* optimizer) {
    const int gradient = gradients_.Of(0, 0).by_parameter().at(index);
    Update(context_.parameters.all()[index], AtHome(Flat(graph_.Whole(gradient)), homes), scale,
           optimizer);
  }

  void Update(const Parameter& parameter, Slice gradient, Slice scale, Optimizer* optimizer) {
    const auto flat = [&](int value) {
      return value == kNone ? Slice() : Flat(graph_.Whole(value));
    };
    OptimizerState state = {.gradient = gradient,
                            .weight = flat(parameter.weight),
                            .rounded = flat(parameter.rounded),
                            .moments = MomentSlices(parameter.moments, flat),
                            .block = context_.parameters.moment_block()};
    AddFactors(parameter.moments, &state);
    builder_.layer = parameter.layer;
    if (UpdatesWholes(kernels::RowOf(parameter.update.rule))) {
      UpdateTensors(parameter, state, "", scale, optimizer);
    } else {
      optimizer->Update(RuleOf(parameter.update), state, scale, parameter.first().name);
    }
    builder_.layer = kNone;
  }

  void AddFactors(const Moments& moments, OptimizerState* state) const {
    for (size_t i = 0; i < moments.factors.size(); ++i) {
      if (moments.factors[i] != kNone) state->factors[i] = graph_.Whole(moments.factors[i]);
    }
  }

  // The tensors of a parameter one by one. `state`: of the whole parameter, flat, and perhaps of
  // what follows it. `and_more`: what the instructions say behind a tensor's name.
  void UpdateTensors(const Parameter& parameter, const OptimizerState& state, const char* and_more,
                     Slice scale, Optimizer* optimizer) {
    std::array<int64_t, kFactorKinds.size()> before = {};  // elements of factors of earlier parts
    for (const Part& part : parameter.parts) {
      const auto matrix = [&](const Slice& flat) {
        if (flat.absent()) return flat;
        const Slice range = Range(flat, part.offset, part.rows * part.columns);
        return Reshape(range, {part.rows, part.columns});
      };
      OptimizerState own = {.gradient = matrix(state.gradient),
                            .weight = matrix(state.weight),
                            .rounded = matrix(state.rounded),
                            .moments = {}};
      for (const MomentSlice& moment : state.moments)
        own.moments.push_back({matrix(moment.numbers)});
      for (size_t i = 0; i < before.size(); ++i) {
        if (state.factors[i].absent()) continue;
        const int64_t elements = FactorElements(part, kFactorKinds[i]);
        own.factors[i] = Range(state.factors[i], before[i], elements);
        before[i] += elements;
      }
      kernels::UpdateAttrs attrs = RuleOf(parameter.update);
      if (kernels::RowOf(attrs.rule).whole_matrix)
        attrs.step_scale = StepScale(part.rows, part.columns);
      optimizer->Update(attrs, own, scale, part.tensor->name + and_more);
    }
  }

  // An orthogonal matrix has 1 / max(rows, columns) as the mean square of its elements. Times 0.2
  // of the root of that it is as long as AdamW's steps usually are (Liu et al. 2025, arXiv
  // 2502.16982, section 2.2); the other is Muon's own.
  float StepScale(int64_t rows, int64_t columns) const {
    const auto r = static_cast<double>(rows), c = static_cast<double>(columns);
    const double scale =
        options_.steps_as_adamw ? 0.2 * std::sqrt(std::max(r, c)) : std::sqrt(std::max(1.0, r / c));
    return static_cast<float>(scale);
  }

  void UpdateShard(int index, int gradient, const std::map<int, int>& homes, Slice scale,
                   Optimizer* optimizer) {
    const Unit& unit = context_.parameters.units()[index];
    if (!unit.sharded()) return UpdateKept(unit, gradient, scale, optimizer);
    const auto whole = [&](int value) { return value == kNone ? Slice() : graph_.Whole(value); };
    OptimizerState state = {.gradient = AtHome(whole(gradient), homes),
                            .weight = whole(unit.master),
                            .rounded = whole(unit.rounded),
                            .moments = MomentSlices(unit.moments, whole),
                            .block = context_.parameters.moment_block()};
    if (!unit.dealt)
      return optimizer->Update(RuleOf(unit.update), state, scale, "shard of " + unit.name);
    AddFactors(unit.moments, &state);
    UpdateTensors(context_.parameters.all()[unit.parameters[0]], state,
                  " or another layer's, as dealt", scale, optimizer);
  }

  // Every rank has all of the unit.
  void UpdateKept(const Unit& unit, int gradient, Slice scale, Optimizer* optimizer) {
    for (const int i : unit.parameters) {
      const Parameter& parameter = context_.parameters.all()[i];
      Update(parameter, Range(graph_.Whole(gradient), parameter.offset, parameter.elements()),
             scale, optimizer);
    }
  }

  // `slice_of`: of a value, absent where there is none. A factored rule may keep the second alone.
  template <typename SliceOf>
  static std::vector<MomentSlice> MomentSlices(const Moments& moments, const SliceOf& slice_of) {
    std::vector<MomentSlice> slices;
    for (size_t i = 0; i < moments.numbers.size(); ++i)
      slices.push_back({slice_of(moments.numbers[i]), slice_of(moments.scales[i])});
    while (!slices.empty() && slices.back().numbers.absent()) slices.pop_back();
    return slices;
  }

  kernels::UpdateAttrs RuleOf(const TensorUpdate& update) const {
    const bool whole = kernels::RowOf(update.rule).whole_matrix;
    kernels::UpdateAttrs attrs = whole ? options_.matrix_update : options_.update;
    attrs.weight_decay = static_cast<float>(update.weight_decay);
    attrs.lr_scale = static_cast<float>(update.lr_scale);
    return attrs;
  }

  const StageContext& context_;
  const TrainOptions& options_;
  Graph& graph_;
  Builder builder_;
  StagePasses passes_;
  GradientScopes gradients_;
  std::vector<BatchSlices> batches_;
  int64_t counted_ = 0;
  int losses_ = 0;                             // micro-batches whose loss is known
  bool summed_ = false;                        // the totals
  std::map<int, std::vector<int>> by_bucket_;  // parameters, without ZeRO
  Slice schedule_, step_, stats_, total_;      // step_: where weights are rounded by it
  Slice margins_;                              // of pairs
  Totals totals_;
};

}  // namespace

absl::Status AppendTrain(const StageContext& context, const TrainOptions& options, Graph* graph) {
  return Train(context, options, graph).Build();
}

void AppendEval(const StageContext& context, const ForwardOptions& options, Graph* graph) {
  Builder builder(graph, AddSequence("eval", graph));
  builder.micro_batch = 0;
  BatchSlices batch = LoadBatch(context, options, /*drops=*/false, &builder);
  const bool pairs = options.preference.has_value();
  const Totals totals = NewTotals("stats", pairs, &builder);
  batch.stats = totals.losses;
  batch.margins = totals.margins;
  StagePasses passes(context, options, &builder);
  // A chunk's number grows with its place in the model, except in V shape, where the last comes
  // after the first on every stage as well.
  for (int chunk = 0; chunk < context.shape.chunks; ++chunk) {
    passes.RunForward(0, chunk, batch, nullptr);
  }
  ZeroWhereNoLoss(context, totals.all, &builder);
  builder.AllReduce(context.parallel.groups.totals, totals.all, "all-reduce loss and tokens");
  MoveFetchesAhead(*graph, &builder.nodes());
  builder.Output(v1::LOSS_TOTAL, batch.stats, "loss and tokens");
  if (pairs) builder.Output(v1::PREFERENCE, batch.margins, "margins");
  FinishCopies(&builder);
}

namespace {

// Room for the keys and values of all layers.
KeptTokens AddKeptTokens(const ModelConfig& config, const ForwardOptions& options,
                         int64_t max_length, Graph* graph) {
  KeptTokens kept = {.max_length = max_length};
  const auto add = [&](int64_t layer, const char* what) {
    return graph->Add({.name = absl::StrCat("layers.", layer, ".", what),
                       .cls = v1::KEY_VALUE_CACHE,
                       .dtype = options.precisions.activation,
                       .shape = {options.batch, max_length, config.kv_heads, config.head_dim},
                       .lifetime = v1::PERSISTENT});
  };
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    kept.keys.push_back(add(layer, "keys"));
    kept.values.push_back(add(layer, "values"));
  }
  return kept;
}

// One pass over at most options.sequence new tokens of each sequence, which gives the logits of as
// many rows of each.
void AppendNewTokens(const std::string& name, const StageContext& context,
                     const ForwardOptions& options, int64_t logits, Graph* graph) {
  Builder builder(graph, AddSequence(name, graph));
  const int64_t tokens = options.batch * options.sequence;
  const auto input = [&](const char* what, const Dims& dims) {
    return builder.NewValue(what, v1::INPUT, DType::kI32, dims);
  };
  const Slice ids = input("tokens", {tokens}), positions = input("positions", {tokens});
  const Slice spans = input("spans", {options.batch, 2});
  const Slice index = input("index", {options.batch * logits});
  builder.Input(v1::LOAD_PROMPT, {ids, positions, spans, index}, "load prompt");
  Forward forward(context.model, context.parameters, context.parallel, options,
                  /*keeps_weights=*/false, &builder);
  forward.SetNewTokens(positions, spans);
  Slice x = forward.Embedding(ids);
  for (int layer = 0; layer < context.model.config.layers; ++layer) x = forward.Layer(layer, x);
  const Slice rows = builder.NewValue("rows", v1::ACTIVATION, options.precisions.activation,
                                      {options.batch * logits, context.model.config.hidden});
  builder.Compute(Op::kGatherRows, kernels::NoAttrs{}, {x, index, rows}, "rows that are asked for");
  builder.Output(v1::LOGITS, forward.Logits(forward.Hidden(rows)), "logits");
}

}  // namespace

void AppendGenerate(const StageContext& context, const ForwardOptions& options,
                    const GenerateShape& shape, Graph* graph) {
  const KeptTokens kept = AddKeptTokens(context.model.config, options, shape.max_length, graph);
  ForwardOptions pass = options;
  pass.kept = &kept;
  pass.sequence = shape.prefill_tokens;
  AppendNewTokens("prefill", context, pass, 1, graph);
  pass.sequence = 1;
  AppendNewTokens("decode", context, pass, 1, graph);
  if (shape.score_tokens == 0) return;
  pass.sequence = shape.score_tokens;
  AppendNewTokens("score", context, pass, shape.score_tokens, graph);
}

void AppendRestore(const StageContext& context, Graph* graph) {
  const std::vector<Unit>& units = context.parameters.units();
  const bool any = std::any_of(units.begin(), units.end(), [](const Unit& unit) {
    return unit.rounded != kNone || (unit.weights != kNone && unit.master != kNone);
  });
  // Stages have the same sequences, those too of which everything is frozen, or kept by all ranks.
  const bool others =
      context.parallel.zero > 0 || (context.parameters.freezes() && RoundsWeights(context.layout));
  if (!any && !others) return;
  Builder builder(graph, AddSequence("restore", graph));
  GatherWeights(context, &builder);
  Weights weights(context.parameters, context.parallel, context.layout.chunk_bytes(), &builder);
  for (const Unit& unit : units) {
    if (unit.rounded != kNone) weights.Round(unit);
  }
  AssignStaging(builder.sequence(), graph);
}

}  // namespace terrace::compiler
