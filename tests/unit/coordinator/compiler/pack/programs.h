// Lives of the buffers of training programs, as the packer gets them: one pipeline stage of a
// decoder, its micro-batches in the order of a schedule. For tests and benchmarks of the packer;
// made here, by hand, so that they do not change with the compiler.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "coordinator/compiler/pack/pack.h"

namespace terrace {

struct ProgramShape {
  std::string name;
  std::string schedule = "1f1b";  // gpipe, 1f1b, interleaved, zero-bubble
  int stages = 1;
  int stage = 0;
  int chunks = 1;  // of the stage; more than 1 with interleaved only
  int micro_batches = 8;
  int layers = 8;  // of one chunk
  int64_t rows = 2048;
  bool rows_vary = false;  // from one micro-batch to the next, as documents do
  int64_t hidden = 1024;
  int64_t keys = 256;  // width of K and of V
  int64_t inner = 2816;
  int64_t heads = 16;
  int64_t vocabulary = 32000;   // the last stage has the head
  int recompute_every = 0;      // keep the input of every k-th layer only; 0: keep everything
  bool gather_weights = false;  // ZeRO-3: a layer's weights are whole only around its use
  int prefetch = 1;             // layers that a gather is ahead
  int transfer_ticks = 6;       // how long another stream holds what it sends
};

class ProgramLives {
 public:
  explicit ProgramLives(const ProgramShape& shape) : shape_(shape), random_(shape.micro_batches) {}

  std::vector<PackBuffer> Make() {
    for (int m = 0; m < shape_.micro_batches; ++m) rows_.push_back(RowsOf());
    kept_.resize(shape_.micro_batches * shape_.chunks);
    for (const Turn& turn : Turns()) {
      if (turn.kind == 'f') Forward(turn);
      if (turn.kind == 'b') Backward(turn);
      if (turn.kind == 'w') WeightGradients(turn);
    }
    Optimizer();
    return std::move(buffers_);
  }

 private:
  struct Turn {
    char kind = 'f';
    int micro_batch = 0;
    int chunk = 0;
  };
  // What waits for the backward pass of one micro-batch and chunk: buffers by layer, and what the
  // weight gradients need.
  struct Kept {
    std::vector<std::vector<size_t>> layers;
    std::vector<size_t> for_weights;
  };

  int64_t RowsOf() {
    if (!shape_.rows_vary) return shape_.rows;
    return 64 * (1 + static_cast<int64_t>(random_() % (shape_.rows / 64)));
  }

  size_t Begin(const std::string& name, int64_t bytes) {
    buffers_.push_back({.name = name, .bytes = std::max<int64_t>(bytes, 1), .begin = now_});
    return buffers_.size() - 1;
  }
  void End(size_t buffer, int64_t later = 0) { buffers_[buffer].end = now_ + 1 + later; }
  void End(const std::vector<size_t>& buffers) {
    for (size_t buffer : buffers) End(buffer);
  }
  void Scratch(const std::string& name, int64_t bytes) { End(Begin(name, bytes)); }

  int Warmup() const {
    const int behind = shape_.stages - shape_.stage - 1;
    if (shape_.schedule != "interleaved") return behind;
    return 2 * behind + (shape_.chunks - 1) * shape_.stages;
  }

  // The k-th pass of a kind: micro-batches go through the chunks in groups of one a stage.
  Turn Nth(char kind, int k) const {
    const int group = std::min(shape_.stages, shape_.micro_batches);
    const int chunk = k / group % shape_.chunks;
    return {kind, k / (group * shape_.chunks) * group + k % group,
            kind == 'f' ? chunk : shape_.chunks - 1 - chunk};
  }

  std::vector<Turn> Turns() const {
    const int passes = shape_.micro_batches * shape_.chunks;
    const int warmup = shape_.schedule == "gpipe" ? passes : std::min(Warmup(), passes);
    std::vector<Turn> turns;
    for (int k = 0; k < warmup; ++k) turns.push_back(Nth('f', k));
    for (int k = warmup, b = 0; b < passes; ++k, ++b) {
      if (k < passes) turns.push_back(Nth('f', k));
      turns.push_back(Nth('b', b));
      const int late = b - shape_.stage;  // weight gradients fill the bubble at the end
      if (shape_.schedule == "zero-bubble" && late >= 0) turns.push_back(Nth('w', late));
    }
    for (int b = std::max(0, passes - shape_.stage); b < passes; ++b) {
      if (shape_.schedule == "zero-bubble") turns.push_back(Nth('w', b));
    }
    return turns;
  }

  int64_t WeightBytes() const {
    return 2 * shape_.hidden * (2 * shape_.hidden + 2 * shape_.keys + 3 * shape_.inner);
  }
  // The `k`-th layer of a pass is computed: the gather of the layer `prefetch` behind it has
  // started, its own weights end soon.
  void Gather(int k, std::vector<size_t>* gathered) {
    if (!shape_.gather_weights) return;
    while (static_cast<int>(gathered->size()) <= std::min(k + shape_.prefetch, shape_.layers - 1)) {
      gathered->push_back(Begin("gathered weights", WeightBytes()));
    }
    End((*gathered)[k], 12);
  }

  // One layer's forward pass; what backward needs is added to `keep`, the rest ends here.
  size_t LayerForward(int64_t rows, size_t x, std::vector<size_t>* keep) {
    const int64_t wide = 2 * rows * shape_.hidden, narrow = 2 * rows * shape_.keys;
    const auto step = [&](const std::string& name, int64_t bytes) {
      ++now_;
      keep->push_back(Begin(name, bytes));
      return keep->back();
    };
    step("rstd", 4 * rows);
    step("norm", wide);
    step("q", wide);
    step("k", narrow);
    step("v", narrow);
    Scratch("attention workspace", 1 << 20);
    step("attention", wide);
    step("lse", 4 * rows * shape_.heads);
    ++now_;
    const size_t projected = Begin("projected", wide);
    ++now_;
    End(projected, shape_.transfer_ticks);  // summed over the tensor group
    step("h", wide);
    step("rstd", 4 * rows);
    step("norm", wide);
    step("gate", 2 * rows * shape_.inner);
    step("up", 2 * rows * shape_.inner);
    step("swiglu", 2 * rows * shape_.inner);
    ++now_;
    const size_t down = Begin("down", wide);
    ++now_;
    End(down, shape_.transfer_ticks);
    const size_t out = Begin("x", wide);
    End(x);
    return out;
  }

  void Forward(const Turn& turn) {
    Kept& kept = kept_[turn.micro_batch * shape_.chunks + turn.chunk];
    const int64_t rows = rows_[turn.micro_batch];
    kept.layers.resize(shape_.layers);
    std::vector<size_t> gathered;
    ++now_;
    size_t x = Begin("received", 2 * rows * shape_.hidden);
    for (int layer = 0; layer < shape_.layers; ++layer) {
      Gather(layer, &gathered);
      std::vector<size_t> keep;
      const size_t input = x;
      x = LayerForward(rows, x, &keep);
      if (shape_.recompute_every == 0) {
        kept.layers[layer] = keep;
        kept.layers[layer].push_back(input);
      } else {
        End(keep);
        if (layer % shape_.recompute_every == 0) kept.layers[layer].push_back(input);
      }
    }
    End(x, shape_.transfer_ticks);
    if (shape_.stage + 1 == shape_.stages && turn.chunk + 1 == shape_.chunks) Head(rows);
  }

  void Head(int64_t rows) {
    for (int64_t done = 0; done < rows; done += 512) {
      ++now_;
      Scratch("logits", 4 * std::min<int64_t>(512, rows - done) * shape_.vocabulary);
    }
  }

  void LayerBackward(int64_t rows, std::vector<size_t>* saved, size_t* gradient, Kept* kept) {
    const int64_t wide = 2 * rows * shape_.hidden, inner = 2 * rows * shape_.inner;
    std::vector<size_t> gradients;
    const auto step = [&](const std::string& name, int64_t bytes) {
      ++now_;
      gradients.push_back(Begin(name, bytes));
      if (gradients.size() > 2) End(gradients[gradients.size() - 3]);
    };
    const auto release = [&](size_t count) {  // the layer's tensors, last first
      for (; count > 0 && !saved->empty(); --count, saved->pop_back()) {
        shape_.schedule == "zero-bubble" ? kept->for_weights.push_back(saved->back())
                                         : End(saved->back());
      }
    };
    step("d swiglu", inner);
    release(1);
    step("d gate", inner);
    step("d up", inner);
    release(2);
    step("d norm", wide);
    step("d h", wide);
    release(3);
    step("d attention", wide);
    step("d q", wide);
    Scratch("attention workspace", 2 << 20);
    release(4);
    step("d k", 2 * rows * shape_.keys);
    step("d v", 2 * rows * shape_.keys);
    step("d norm", wide);
    End(*gradient);
    *gradient = Begin("d x", wide);
    End(gradients);
    release(saved->size());
    if (shape_.gather_weights) End(Begin("gradient bucket", 2 * WeightBytes()), 20);
  }

  void Backward(const Turn& turn) {
    Kept& kept = kept_[turn.micro_batch * shape_.chunks + turn.chunk];
    const int64_t rows = rows_[turn.micro_batch];
    std::vector<size_t> gathered;
    ++now_;
    size_t gradient = Begin("received gradient", 2 * rows * shape_.hidden);
    std::vector<std::vector<size_t>> again(shape_.layers);
    for (int layer = shape_.layers - 1; layer >= 0; --layer) {
      Gather(shape_.layers - 1 - layer, &gathered);
      const int every = shape_.recompute_every;
      if (every > 0 && again[layer].empty()) Recompute(rows, layer / every * every, layer, &again);
      std::vector<size_t> saved = every > 0 ? again[layer] : kept.layers[layer];
      if (every > 0) End(kept.layers[layer]);
      LayerBackward(rows, &saved, &gradient, &kept);
    }
    End(gradient, shape_.transfer_ticks);
  }

  void Recompute(int64_t rows, int first, int last, std::vector<std::vector<size_t>>* again) {
    size_t x = Begin("x", 2 * rows * shape_.hidden);
    for (int layer = first; layer <= last; ++layer) {
      const size_t input = x;
      std::vector<size_t> keep;
      x = LayerForward(rows, x, &keep);
      keep.insert(keep.begin(), input);
      (*again)[layer] = keep;
    }
    End(x);
  }

  void WeightGradients(const Turn& turn) {
    Kept& kept = kept_[turn.micro_batch * shape_.chunks + turn.chunk];
    for (size_t buffer : kept.for_weights) {
      ++now_;
      End(buffer);
    }
  }

  // Whole-step buffers: gradient sums, statistics; and the scratch of the update.
  void Optimizer() {
    const int layers = shape_.layers * shape_.chunks;
    for (int layer = 0; layer < layers; ++layer) {
      ++now_;
      Scratch("update", WeightBytes() / 4);
    }
    for (int layer = 0; layer < layers && !shape_.gather_weights; ++layer) {
      buffers_.push_back({.name = "gradients", .bytes = 2 * WeightBytes(), .begin = 0});
      End(buffers_.size() - 1);
    }
    buffers_.push_back({.name = "stats", .bytes = 16, .begin = 0});
    End(buffers_.size() - 1);
  }

  ProgramShape shape_;
  std::mt19937 random_;
  int64_t now_ = 0;
  std::vector<PackBuffer> buffers_;
  std::vector<int64_t> rows_;
  std::vector<Kept> kept_;
};

inline std::vector<PackBuffer> MakeProgramLives(const ProgramShape& shape) {
  return ProgramLives(shape).Make();
}

// What people train with: every schedule, with and without recomputation, gathered weights and
// varying lengths, on the first, a middle and the last stage.
inline std::vector<ProgramShape> TrainingProgramShapes() {
  std::vector<ProgramShape> shapes;
  for (const char* schedule : {"gpipe", "1f1b", "interleaved", "zero-bubble"}) {
    for (int stage : {0, 1, 3}) {
      for (int recompute : {0, 1, 4}) {
        for (bool gather : {false, true}) {
          for (bool vary : {false, true}) {
            if (recompute > 0 && std::string(schedule) == "zero-bubble") continue;
            shapes.push_back({.name = std::string(schedule) + " stage " + std::to_string(stage) +
                                      " recompute " + std::to_string(recompute) +
                                      (gather ? " gathered" : "") + (vary ? " varying" : ""),
                              .schedule = schedule,
                              .stages = 4,
                              .stage = stage,
                              .chunks = std::string(schedule) == "interleaved" ? 2 : 1,
                              .micro_batches = 8,
                              .layers = 8,
                              .rows_vary = vary,
                              .recompute_every = recompute,
                              .gather_weights = gather,
                              .prefetch = 1 + stage % 2});
          }
        }
      }
    }
  }
  return shapes;
}

// A stage of a large model in 1F1B: Llama 3 405B over 16 stages.
inline ProgramShape LargeStage(int stage, int micro_batches) {
  return {.name = "405B stage " + std::to_string(stage),
          .schedule = "1f1b",
          .stages = 16,
          .stage = stage,
          .micro_batches = micro_batches,
          .layers = stage == 0 || stage == 15 ? 7 : 8,
          .rows = 8192,
          .hidden = 16384 / 8,
          .keys = 1024 / 8,
          .inner = 53248 / 8,
          .heads = 16,
          .vocabulary = 128256 / 8};
}

}  // namespace terrace
