// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/stage.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace terrace::compiler {
namespace {

// Names that tell chunks apart where a stage has several.
std::string Text(std::string what, const ScheduleShape& shape, int chunk) {
  return shape.chunks == 1 ? what : absl::StrCat(what, " of chunk ", chunk);
}

}  // namespace

int FirstTrained(const Model& model, const v1::OptimizerSpec& optimizer,
                 const std::vector<ChunkRange>& chunks) {
  int first = static_cast<int>(chunks.size()) - 1;
  for (const Tensor& tensor : model.tensors) {
    const int chunk = ChunkOf(tensor, chunks);
    if (chunk < first && !UpdateOf(optimizer, model.config, tensor).frozen) first = chunk;
  }
  return first;
}

bool StageContext::HasFirst() const {
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    if (ChunkOf(chunk).first) return true;
  }
  return false;
}

bool StageContext::HasLast() const {
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    if (ChunkOf(chunk).last) return true;
  }
  return false;
}

ParameterGradients& GradientScopes::Of(int micro_batch, int chunk) {
  std::pair<int, int> pass = {0, 0};
  std::string name;
  if (parallel_.zero >= 2) {
    pass = {in_runs_ ? 0 : micro_batch, chunk};
    name = in_runs_ ? absl::StrCat("chunk", chunk, ".") : absl::StrCat("mb", micro_batch, ".");
  }
  const auto [it, is_new] = by_pass_.try_emplace(pass, scopes_.size());
  if (is_new) {
    scopes_.push_back(
        std::make_unique<ParameterGradients>(parameters_, parallel_.zero > 0, std::move(name)));
  }
  return *scopes_[it->second];
}

template <typename F>
void StagePasses::Record(Recompute recompute, bool keep, Flight* flight, F append) {
  if (!keep) {
    append();
    return;
  }
  flight->segments.push_back({.recompute = recompute});
  std::vector<Node> nodes;
  builder_.record = &nodes;
  append();
  builder_.record = nullptr;
  flight->segments.back().nodes = std::move(nodes);
}

void StagePasses::BeginPass(v1::Phase phase, int chunk) {
  const std::pair<v1::Phase, int> run = {phase, chunk};
  builder_.goes_on = context_.InRuns() && run_ == run;
  builder_.MarkPass();
  builder_.phase = phase;
  run_ = run;
  if (builder_.goes_on) return;
  forward_.reset();
  prefetched_.clear();
}

// Evaluation runs no passes of the schedule, and holds what it sends to the end.
int StagePasses::DoneBy() const {
  if (!forward_options_.for_backward) return kNone;
  const std::vector<int>& retire = context_.retire;
  const int pass = retire.at(builder_.pass() - 1);
  return pass < static_cast<int>(retire.size()) ? pass + 1 : kNone;
}

// The residual stream from the chunk before: of this stage, or received.
Slice StagePasses::Enter(int micro_batch, int model_chunk, Forward* forward, bool reference) {
  const StageChunk before = StageChunkOf(context_.shape, model_chunk - 1);
  if (before.stage == context_.stage) {
    const Flight& flight = FlightOf(micro_batch, before.chunk);
    return reference ? flight.reference : flight.output;
  }
  const char* const name = reference ? "reference" : "x";
  const Slice x = forward->NewResidual(absl::StrCat(name, ".chunk", model_chunk));
  builder_.Receive(context_.parallel.groups.forward, before.stage, x,
                   absl::StrCat("receive ", name));
  return x;
}

void StagePasses::Leave(int chunk, Slice x, const char* name) {
  const int model_chunk = ModelChunk(context_.shape, context_.stage, chunk);
  const StageChunk after = StageChunkOf(context_.shape, model_chunk + 1);
  if (after.stage == context_.stage) return;
  builder_.Send(context_.parallel.groups.forward, after.stage, DoneBy(), x,
                Text(absl::StrCat("send ", name), context_.shape, chunk));
}

Slice StagePasses::GradientFrom(int micro_batch, int model_chunk, Slice output) {
  const StageChunk after = StageChunkOf(context_.shape, model_chunk + 1);
  if (after.stage == context_.stage) return FlightOf(micro_batch, after.chunk).dinput;
  const Slice dx = builder_.NewGradientOf(builder_.graph().values[output.value]);
  builder_.Receive(context_.parallel.groups.backward, after.stage, dx, "receive d.x");
  return dx;
}

void StagePasses::RunForward(int micro_batch, int chunk, const BatchSlices& batch,
                             ParameterGradients* gradients) {
  const int model_chunk = ModelChunk(context_.shape, context_.stage, chunk);
  const ChunkRange& layers = context_.chunks[model_chunk];
  const bool keep = gradients != nullptr && model_chunk >= context_.first_trained;
  const bool pairs = forward_options_.preference.has_value();
  BeginPass(v1::FORWARD, chunk);
  builder_.micro_batch = micro_batch;
  if (!forward_) {
    forward_.emplace(context_.model, context_.parameters, context_.parallel, forward_options_,
                     /*keeps_weights=*/context_.InRuns(), &builder_);
  }
  Forward& forward = *forward_;
  forward.SetPlaces(batch.places);
  forward.SetStarts(batch.starts);
  Flight& flight = FlightOf(micro_batch, chunk);
  Slice x, reference;
  if (layers.first) {
    Record(Recompute::kNone, keep, &flight, [&] { x = forward.Embedding(batch.tokens); });
    if (pairs) reference = forward.ReferenceEmbedding(batch.tokens, x);
  } else {
    x = flight.input = Enter(micro_batch, model_chunk, &forward, /*reference=*/false);
    if (pairs) reference = Enter(micro_batch, model_chunk, &forward, /*reference=*/true);
  }
  for (const SegmentPlan& segment :
       PlanSegments(context_.layout, layers, context_.first_trained_layer)) {
    Record(segment.recompute, keep, &flight, [&] {
      for (int layer = segment.begin; layer < segment.end; ++layer) {
        x = forward.Layer(layer, x);
        if (pairs) reference = forward.ReferenceLayer(layer, reference);
      }
    });
  }
  if (layers.last) {
    Record(Recompute::kNone, keep, &flight, [&] { x = forward.Hidden(x); });
    BatchSlices weighted = batch;
    if (pairs) {
      reference = forward.ReferenceHidden(reference);
      weighted.weights = forward.PairLoss(x, reference, batch);
    }
    if (keep) {
      flight.doutput = forward.LossAndGradient(x, weighted, gradients);
    } else if (!pairs) {
      forward.Loss(x, batch.targets, batch.stats);
    }
  } else {
    Leave(chunk, x, "x");
    if (pairs) Leave(chunk, reference, "reference");
  }
  flight.output = x;
  flight.reference = reference;
  builder_.micro_batch = kNone;
}

absl::Status StagePasses::RunBackward(int micro_batch, int chunk, bool put_off_weights,
                                      ParameterGradients* gradients) {
  const int model_chunk = ModelChunk(context_.shape, context_.stage, chunk);
  const ChunkRange& layers = context_.chunks[model_chunk];
  BeginPass(v1::BACKWARD, chunk);
  if (model_chunk < context_.first_trained) return absl::OkStatus();
  builder_.micro_batch = micro_batch;
  Flight& flight = FlightOf(micro_batch, chunk);
  BackwardPass pass(gradients, put_off_weights, context_.InRuns() ? &prefetched_ : nullptr,
                    &builder_);
  pass.Seed(flight.output,
            layers.last ? flight.doutput : GradientFrom(micro_batch, model_chunk, flight.output));
  const bool goes_on = model_chunk > context_.first_trained;
  if (context_.parameters.freezes())
    KeepTrainedRules(goes_on ? flight.input : Slice(), context_.parameters, builder_.graph(),
                     &flight.segments);
  RETURN_IF_ERROR(pass.Run(flight.segments));
  flight.put_off = pass.TakePutOff();
  flight.segments.clear();
  if (goes_on) {
    flight.dinput = pass.GradientOf(flight.input);
    const StageChunk before = StageChunkOf(context_.shape, model_chunk - 1);
    if (before.stage != context_.stage) {
      builder_.Send(context_.parallel.groups.backward, before.stage, DoneBy(), flight.dinput,
                    Text("send d.x", context_.shape, chunk));
    }
  }
  builder_.micro_batch = kNone;
  return absl::OkStatus();
}

void StagePasses::RunWeights(int micro_batch, int chunk) {
  builder_.MarkPass();
  builder_.phase = v1::BACKWARD;
  Flight& flight = FlightOf(micro_batch, chunk);
  int layer = kNone;
  for (Node& node : flight.put_off) {
    if (node.layer != layer) builder_.Mark();
    layer = node.layer;
    builder_.Repeat(std::move(node));
  }
  flight.put_off.clear();
}

}  // namespace terrace::compiler
