// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/step.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/compiler/autodiff.h"
#include "coordinator/compiler/buckets.h"

namespace terrace::compiler {
namespace {

using kernels::DType;
using kernels::Op;

int AddSequence(const std::string& name, Graph* graph) {
  graph->sequences.push_back({.name = name});
  return static_cast<int>(graph->sequences.size()) - 1;
}

struct Batch {
  Slice tokens, targets;
};

// Loads stand before everything else: nothing orders them after computation, so that they run ahead
// of it.
Batch LoadBatch(const ForwardOptions& options, Builder* builder) {
  const Dims dims = {options.batch * options.sequence};
  const Batch batch = {builder->NewValue("tokens", v1::INPUT, DType::kI32, dims),
                       builder->NewValue("targets", v1::INPUT, DType::kI32, dims)};
  builder->Input(v1::LOAD_BATCH, {batch.tokens, batch.targets}, "load batch");
  return batch;
}

// Elements [begin, begin + count) of a value, as one dimension.
Slice Range(const Slice& whole, int64_t begin, int64_t count) {
  return {.value = whole.value, .offset = begin, .shape = DenseShape(whole.shape.dtype, {count})};
}

Slice Flat(const Graph& graph, int value) {
  const Slice whole = graph.Whole(value);
  return Range(whole, 0, whole.shape.Elements());
}

// Without a reduction nothing gains from large buckets, and small ones live shorter.
constexpr int64_t kLocalBucketBytes = int64_t{4} << 20;

int64_t BucketBytes(const TrainOptions& options) {
  if (options.group != kNone) return options.bucket_bytes;
  return std::min(options.bucket_bytes, kLocalBucketBytes);
}

class Train {
 public:
  Train(const Model& model, const Parameters& parameters, const TrainOptions& options, Graph* graph)
      : model_(model),
        parameters_(parameters),
        options_(options),
        graph_(*graph),
        sequence_(AddSequence("train", graph)),
        builder_(graph, sequence_) {}

  absl::Status Build() {
    LoadInputs();
    stats_ = builder_.NewValue("stats", v1::ACTIVATION, DType::kF32, {options_.micro_batches, 2});
    total_ = builder_.NewValue("total", v1::ACTIVATION, DType::kF32, {2});
    for (int i = 0; i < options_.micro_batches; ++i) RETURN_IF_ERROR(MicroBatch(i));
    const std::vector<Bucket> buckets =
        MakeBuckets(gradients_, BucketBytes(options_), sequence_, &graph_);
    builder_.phase = v1::OPTIMIZER_STEP;
    Optimize(SquaredNorms(buckets));
    return absl::OkStatus();
  }

 private:
  void LoadInputs() {
    for (int i = 0; i < options_.micro_batches; ++i) {
      builder_.micro_batch = i;
      batches_.push_back(LoadBatch(options_.forward, &builder_));
    }
    builder_.micro_batch = kNone;
    builder_.phase = v1::OPTIMIZER_STEP;
    schedule_ = builder_.NewValue("schedule", v1::INPUT, DType::kF32, {4});
    builder_.Input(v1::LOAD_SCHEDULE, {schedule_}, "load schedule");
  }

  absl::Status MicroBatch(int index) {
    builder_.phase = v1::FORWARD;
    builder_.micro_batch = index;
    const size_t begin = builder_.nodes().size();
    Forward forward(model_, parameters_, options_.forward, &builder_);
    const Slice hidden = forward.FinalNorm(forward.Layers(batches_[index].tokens));
    forward.Loss(hidden, batches_[index].targets, Range(stats_, 2 * index, 2));
    const size_t end = builder_.nodes().size();
    // The totals are final before the last backward pass starts, so their reduction costs no time.
    if (index + 1 == options_.micro_batches) SumStats();
    builder_.micro_batch = index;
    RETURN_IF_ERROR(AppendBackward(begin, end, &gradients_, &builder_));
    builder_.micro_batch = kNone;
    return absl::OkStatus();
  }

  void SumStats() {
    builder_.micro_batch = kNone;
    builder_.Compute(Op::kSumStats, kernels::NoAttrs{}, {stats_, total_},
                     "sum of losses and tokens");
    if (options_.group != kNone) {
      builder_.AllReduce(options_.group, total_, "all-reduce losses and tokens");
    }
  }

  // One partial sum of squares a bucket, of reduced gradients. With one rank each is taken as soon
  // as its bucket is final, while it is in the cache; otherwise the backward pass would wait for
  // the reductions, so they come after it.
  Slice SquaredNorms(const std::vector<Bucket>& buckets) {
    const Slice squares = builder_.NewValue("squares", v1::ACTIVATION, DType::kF32,
                                            {static_cast<int64_t>(buckets.size())});
    const auto squared_norm = [&](size_t i) -> Node {
      return {
          .what = Compute{Op::kSquaredNorm, kernels::NoAttrs{}},
          .operands = {graph_.Whole(buckets[i].value), Range(squares, static_cast<int64_t>(i), 1)},
          .phase = v1::OPTIMIZER_STEP,
          .text = absl::StrCat("squared norm of bucket ", i)};
    };
    const auto all_reduce = [&](size_t i) -> Node {
      return {.what = Collective{v1::ALL_REDUCE, options_.group},
              .operands = {graph_.Whole(buckets[i].value)},
              .phase = v1::BACKWARD,
              .text = absl::StrCat("all-reduce bucket ", i)};
    };
    if (options_.group == kNone) {
      InsertWhenFinal(buckets, sequence_, squared_norm, &graph_);
      return squares;
    }
    InsertWhenFinal(buckets, sequence_, all_reduce, &graph_);
    for (size_t i = 0; i < buckets.size(); ++i) builder_.nodes().push_back(squared_norm(i));
    return squares;
  }

  void Optimize(Slice squares) {
    const Slice scale = builder_.NewValue("scale", v1::ACTIVATION, DType::kF32, {4});
    builder_.Compute(Op::kGradScale, kernels::ClipAttrs{.clip_grad_norm = options_.clip_grad_norm},
                     {squares, total_, scale}, "gradient scale");
    for (const Parameter& parameter : parameters_.all()) Adamw(parameter, scale);
    builder_.Output(v1::STEP_STATS, scale, "step statistics");
  }

  void Adamw(const Parameter& parameter, Slice scale) {
    kernels::AdamwAttrs attrs = options_.adamw;
    if (!parameter.decays()) attrs.weight_decay = 0;
    builder_.layer = parameter.layer;
    builder_.Compute(
        Op::kAdamw, attrs,
        {Flat(graph_, gradients_.all().at(parameter.weight)), Flat(graph_, parameter.weight),
         Flat(graph_, parameter.adam_m), Flat(graph_, parameter.adam_v), scale, schedule_},
        absl::StrCat("adamw ", parameter.tensors[0]->name));
    builder_.layer = kNone;
  }

  const Model& model_;
  const Parameters& parameters_;
  const TrainOptions& options_;
  Graph& graph_;
  const int sequence_;
  Builder builder_;
  ParameterGradients gradients_;
  std::vector<Batch> batches_;
  Slice schedule_, stats_, total_;
};

}  // namespace

absl::Status AppendTrain(const Model& model, const Parameters& parameters,
                         const TrainOptions& options, Graph* graph) {
  return Train(model, parameters, options, graph).Build();
}

void AppendEval(const Model& model, const Parameters& parameters, const ForwardOptions& options,
                int group, Graph* graph) {
  Builder builder(graph, AddSequence("eval", graph));
  builder.micro_batch = 0;
  const Batch batch = LoadBatch(options, &builder);
  Forward forward(model, parameters, options, &builder);
  const Slice hidden = forward.FinalNorm(forward.Layers(batch.tokens));
  const Slice stats = builder.NewValue("stats", v1::ACTIVATION, DType::kF32, {2});
  forward.Loss(hidden, batch.targets, stats);
  if (group != kNone) builder.AllReduce(group, stats, "all-reduce loss and tokens");
  builder.Output(v1::LOSS_TOTAL, stats, "loss and tokens");
}

void AppendInfer(const Model& model, const Parameters& parameters, const ForwardOptions& options,
                 Graph* graph) {
  Builder builder(graph, AddSequence("infer", graph));
  const int64_t tokens = options.batch * options.sequence;
  const Slice prompt = builder.NewValue("tokens", v1::INPUT, DType::kI32, {tokens});
  const Slice index = builder.NewValue("index", v1::INPUT, DType::kI32, {1});
  builder.Input(v1::LOAD_PROMPT, {prompt, index}, "load prompt");
  Forward forward(model, parameters, options, &builder);
  const Slice x = forward.Layers(prompt);
  const Slice row =
      builder.NewValue("row", v1::ACTIVATION, options.activation, {1, model.config.hidden});
  builder.Compute(Op::kGatherRows, kernels::NoAttrs{}, {x, index, row}, "last position");
  builder.Output(v1::LOGITS, forward.Logits(forward.FinalNorm(row)), "logits");
}

}  // namespace terrace::compiler
