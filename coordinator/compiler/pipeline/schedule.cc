// SPDX-License-Identifier: Apache-2.0
#include "coordinator/compiler/pipeline/schedule.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace terrace::compiler {
namespace {

using Passes = std::vector<Pass>;

void Append(PassKind kind, int micro_batch, int chunk, Passes* passes) {
  passes->push_back({.kind = kind, .micro_batch = micro_batch, .chunk = chunk});
}

// An order for more micro-batches than there are, without those that are not: what is left depends
// on nothing that was dropped, so it runs wherever the whole order does.
void DropAbsent(int micro_batches, Passes* passes) {
  std::erase_if(*passes, [&](const Pass& pass) { return pass.micro_batch >= micro_batches; });
}

Passes Gpipe(const ScheduleShape& shape) {
  Passes passes;
  for (int k = 0; k < shape.micro_batches; ++k) Append(PassKind::kForward, k, 0, &passes);
  for (int k = 0; k < shape.micro_batches; ++k) Append(PassKind::kBackward, k, 0, &passes);
  return passes;
}

// Breadth-first (Lamy-Poirier 2022, arXiv 2211.05953): every micro-batch goes through a chunk
// before the first goes through the next one, and back likewise.
Passes BreadthFirst(const ScheduleShape& shape) {
  Passes passes;
  for (int chunk = 0; chunk < shape.chunks; ++chunk) {
    for (int k = 0; k < shape.micro_batches; ++k) Append(PassKind::kForward, k, chunk, &passes);
  }
  for (int chunk = shape.chunks; chunk-- > 0;) {
    for (int k = 0; k < shape.micro_batches; ++k) Append(PassKind::kBackward, k, chunk, &passes);
  }
  return passes;
}

// A stage runs ahead by the stages that follow it, then alternates.
Passes OneForwardOneBackward(const ScheduleShape& shape, int stage) {
  const int ahead = std::min(shape.micro_batches, shape.stages - stage - 1);
  Passes passes;
  for (int k = 0; k < ahead; ++k) Append(PassKind::kForward, k, 0, &passes);
  for (int k = 0; k < shape.micro_batches; ++k) {
    if (ahead + k < shape.micro_batches) Append(PassKind::kForward, ahead + k, 0, &passes);
    Append(PassKind::kBackward, k, 0, &passes);
  }
  return passes;
}

// Megatron's order: `stages` micro-batches go through the first chunk, then the next, and so on;
// the backward passes likewise from the last chunk. It is made for the next multiple of `stages`.
Passes Interleaved(const ScheduleShape& shape, int stage) {
  const int p = shape.stages, v = shape.chunks;
  const int total = (shape.micro_batches + p - 1) / p * p * v;
  const int ahead = std::min(total, 2 * (p - stage - 1) + (v - 1) * p);
  const auto micro_batch = [&](int k) { return k / (p * v) * p + k % p; };
  const auto chunk = [&](int k) { return k % (p * v) / p; };
  Passes passes;
  for (int k = 0; k < total + ahead; ++k) {
    if (k < total) Append(PassKind::kForward, micro_batch(k), chunk(k), &passes);
    const int back = k - ahead;
    if (back < 0) continue;
    Append(PassKind::kBackward, micro_batch(back), v - 1 - chunk(back), &passes);
  }
  DropAbsent(shape.micro_batches, &passes);
  return passes;
}

// 1f1b, where stage s puts off the weight gradients by s micro-batches: it would hold s activations
// fewer than stage 0, so it has the room, and its late weight gradients fill its wait at the end.
Passes ZeroBubbleH1(const ScheduleShape& shape, int stage) {
  const int m = shape.micro_batches;
  const int ahead = std::min(m, shape.stages - stage);
  Passes passes;
  for (int k = 0; k < ahead; ++k) Append(PassKind::kForward, k, 0, &passes);
  for (int k = 0; k < m + stage; ++k) {
    if (k < m) Append(PassKind::kBackwardInput, k, 0, &passes);
    if (k >= stage) Append(PassKind::kBackwardWeight, k - stage, 0, &passes);
    if (ahead + k < m) Append(PassKind::kForward, ahead + k, 0, &passes);
  }
  return passes;
}

// Builds the list of one stage for zbv: each call appends the next micro-batch's pass of that kind.
class ZeroBubbleV {
 public:
  ZeroBubbleV(const ScheduleShape& shape, int stage)
      : shape_(shape),
        stage_(stage),
        padded_(std::max(shape.micro_batches, 2 * shape.stages - 1)) {}

  // With equal costs every phase fits those of the neighbours without a gap, once there are as many
  // micro-batches as the first stage runs ahead.
  Passes Make() && {
    const int after = shape_.stages - stage_;  // stages from this one on
    for (int i = 0; i < 2 * after - 1; ++i) Forward(0);
    for (int i = 0; i < stage_; ++i) {
      Forward(1);
      Forward(0);
    }
    for (int i = 0; i < after; ++i) {
      Forward(1);
      Backward(1);
    }
    while (forward_[1] < padded_) {
      if (forward_[0] < padded_) Forward(0);
      Backward(0);
      Forward(1);
      Backward(1);
    }
    for (int i = 0; i < stage_; ++i) {
      Input(0);
      Input(1);
    }
    for (int i = 0; i < after; ++i) {
      Input(0);
      Weight(0);
    }
    while (weight_[1] < padded_) Weight(1);
    while (weight_[0] < padded_) Weight(0);
    DropAbsent(shape_.micro_batches, &passes_);
    return std::move(passes_);
  }

 private:
  void Forward(int chunk) { Append(PassKind::kForward, forward_[chunk]++, chunk, &passes_); }
  void Input(int chunk) { Append(PassKind::kBackwardInput, input_[chunk]++, chunk, &passes_); }
  void Weight(int chunk) { Append(PassKind::kBackwardWeight, weight_[chunk]++, chunk, &passes_); }

  void Backward(int chunk) {
    Input(chunk);
    Weight(chunk);
  }

  const ScheduleShape& shape_;
  const int stage_;
  const int padded_;  // micro-batches the order is made for
  std::array<int, 2> forward_ = {}, input_ = {}, weight_ = {};  // micro-batches so far, by chunk
  Passes passes_;
};

Passes StageList(const ScheduleShape& shape, int stage) {
  if (shape.name == "gpipe") return Gpipe(shape);
  if (shape.name == "1f1b") return OneForwardOneBackward(shape, stage);
  if (shape.name == "interleaved") return Interleaved(shape, stage);
  if (shape.name == "zb-h1") return ZeroBubbleH1(shape, stage);
  if (shape.name == kBreadthFirst) return BreadthFirst(shape);
  return ZeroBubbleV(shape, stage).Make();
}

absl::Status CheckChunks(const ScheduleShape& shape) {
  const auto refuse = [&](std::string_view rule) {
    return absl::InvalidArgumentError(absl::StrCat("layout.interleave: got ", shape.chunks,
                                                   ", with schedule '", shape.name, "' it must be ",
                                                   std::string(rule)));
  };
  if (shape.name == "interleaved") {
    return shape.chunks >= 2 ? absl::OkStatus() : refuse("2 or more; 1 is schedule '1f1b'");
  }
  if (shape.name == kBreadthFirst)
    return shape.chunks >= 1 ? absl::OkStatus() : refuse("1 or more");
  if (shape.name == "zbv") return shape.chunks == 2 ? absl::OkStatus() : refuse("2");
  return shape.chunks == 1 ? absl::OkStatus() : refuse("1; try schedule 'interleaved'");
}

absl::Status Check(const ScheduleShape& shape) {
  constexpr std::array<std::string_view, 6> kNames = {"gpipe", "1f1b", "interleaved",
                                                      "zb-h1", "zbv",  kBreadthFirst};
  if (std::find(kNames.begin(), kNames.end(), shape.name) == kNames.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout.schedule: got '", shape.name,
                     "', must be one of gpipe, 1f1b, interleaved, zb-h1, zbv, breadth_first"));
  }
  if (shape.stages < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("layout.pp: got ", shape.stages, ", must be at least 1"));
  }
  if (shape.micro_batches < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("micro-batches of a step: got ", shape.micro_batches, ", must be at least 1"));
  }
  return CheckChunks(shape);
}

std::optional<StageChunk> Neighbour(const ScheduleShape& shape, int stage, const Pass& pass,
                                    int step) {
  if (pass.kind == PassKind::kBackwardWeight) return std::nullopt;
  if (pass.kind != PassKind::kForward) step = -step;
  const int chunk = ModelChunk(shape, stage, pass.chunk) + step;
  if (chunk < 0 || chunk >= shape.stages * shape.chunks) return std::nullopt;
  return StageChunkOf(shape, chunk);
}

}  // namespace

absl::StatusOr<std::vector<Passes>> MakeSchedule(const ScheduleShape& shape) {
  if (absl::Status status = Check(shape); !status.ok()) return status;
  std::vector<Passes> schedule;
  for (int stage = 0; stage < shape.stages; ++stage) schedule.push_back(StageList(shape, stage));
  return schedule;
}

int ModelChunk(const ScheduleShape& shape, int stage, int chunk) {
  if (shape.name == "zbv" && chunk == 1) return 2 * shape.stages - 1 - stage;
  return chunk * shape.stages + stage;
}

StageChunk StageChunkOf(const ScheduleShape& shape, int model_chunk) {
  const StageChunk place = {.stage = model_chunk % shape.stages,
                            .chunk = model_chunk / shape.stages};
  if (shape.name == "zbv" && place.chunk == 1) return {shape.stages - 1 - place.stage, 1};
  return place;
}

std::optional<StageChunk> ConsumerOf(const ScheduleShape& shape, int stage, const Pass& pass) {
  return Neighbour(shape, stage, pass, 1);
}

std::optional<StageChunk> ProducerOf(const ScheduleShape& shape, int stage, const Pass& pass) {
  return Neighbour(shape, stage, pass, -1);
}

std::vector<int> SendsRetire(const ScheduleShape& shape, int stage, const Passes& passes) {
  // A run over a chunk sends all its messages before their receiver, which is at work on the run
  // before, takes the first that goes round from the last stage to the first.
  const bool goes_round = shape.name == kBreadthFirst && shape.chunks > 1;
  const size_t buffers = goes_round ? std::max(2, shape.micro_batches) : 2;
  std::vector<int> retire(passes.size(), -1);
  std::map<std::pair<bool, int>, std::vector<int>> sent;  // by direction and peer: positions
  for (int i = 0; i < static_cast<int>(passes.size()); ++i) {
    const std::optional<StageChunk> to = ConsumerOf(shape, stage, passes[i]);
    if (!to || to->stage == stage) continue;
    std::vector<int>& earlier = sent[{passes[i].kind == PassKind::kForward, to->stage}];
    if (earlier.size() >= buffers) retire[earlier[earlier.size() - buffers]] = i;
    earlier.push_back(i);
    retire[i] = static_cast<int>(passes.size());
  }
  return retire;
}

bool SplitsBackward(std::string_view name) { return name == "zb-h1" || name == "zbv"; }

}  // namespace terrace::compiler
