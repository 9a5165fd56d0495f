// What ranks send in a step by the dimensions of the model and of the layout, and jobs whose ranks
// are held against it. Nothing here is read off the programs.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "tests/system/layout_data.h"

namespace terrace {

inline constexpr int64_t kLength = 16;
inline constexpr int64_t kF32 = 4;

using Sent = std::map<std::string, int64_t>;  // bytes of one rank and step, by group

// ---- what patterns cost (worker/comm/communicator.h)

// Of `elements` in N parts, the last ones short; a member sends all parts but one, twice.
inline int64_t AllReduce(int64_t elements, int64_t members, int64_t member, int64_t size = kF32) {
  const int64_t part = (elements + members - 1) / members;
  const auto held = [&](int64_t p) {
    return std::clamp<int64_t>(elements - p % members * part, 0, part);
  };
  return size * (2 * elements - held(member) - held(member + 1));
}

// Reduce-scatter, all-gather and all-to-all of N equal parts.
inline int64_t Share(int64_t bytes, int64_t members) { return bytes / members * (members - 1); }

// ---- sizes

// A vocabulary of 64: every tensor is a multiple of every number of ranks here.
inline Model SmallModel(const std::string& family, int64_t vocabulary = 64) {
  return TinyModel(family, {.vocabulary = vocabulary, .layers = 4, .sequence = kLength});
}

inline int64_t ElementsOf(const Model& model) {
  return std::accumulate(model.tensors.begin(), model.tensors.end(), int64_t{0},
                         [](int64_t sum, const Tensor& tensor) { return sum + tensor.elements(); });
}

inline int64_t AlignUp(int64_t elements, int64_t to) { return (elements + to - 1) / to * to; }

// A matrix of a page or more begins on a page, as it may rest off the device.
inline constexpr int64_t kPage = 4096 / kF32;
inline int64_t Pages(int64_t elements) {
  return elements < kPage ? elements : AlignUp(elements, kPage);
}

// What ZeRO shares as one region: its parameters start on 64 bytes, and so does each rank's piece,
// or where it holds matrices on a page of elements as products read them. 0: vectors.
inline int64_t UnitElements(const std::vector<int64_t>& parameters, int64_t shards,
                            int64_t page = kPage) {
  constexpr int64_t kLine = 64 / kF32;
  int64_t end = 0;
  for (int64_t elements : parameters) end = AlignUp(end, kLine) + elements;
  const int64_t share = (end + shards - 1) / shards;
  return AlignUp(share, page > 0 && share >= page ? page : kLine) * shards;
}

// A model, a batch, and the sizes of what goes over links.
struct Job {
  JobData data;
  v1::Layout layout;

  const ModelConfig& config() const { return data.model.config; }
  int64_t ranks() const {
    return layout.data_parallel() * layout.tensor_parallel() * layout.pipeline_parallel() *
           layout.context_parallel();
  }
  int64_t passes() const { return layout.micro_batches(); }
  int64_t activation() const { return layout.precision() == "bf16" ? 2 : 4; }
  // Of an element as ZeRO gathers it: what products compute with. Rows of tables are added before
  // they are rounded where positions are learned. Norms and biases: kF32.
  int64_t matrix() const { return activation(); }
  int64_t page() const { return 4096 / activation(); }
  int64_t table() const { return config().mlp == MlpKind::kPlain ? kF32 : activation(); }
  int64_t tokens() const {  // of a micro-batch on one rank
    return layout.micro_batch() * kLength / layout.context_parallel();
  }
  int64_t hidden_bytes() const { return tokens() * config().hidden * activation(); }
  int64_t layers() const { return config().layers; }
};

inline Job NewJob(const std::string& family, const std::string& precision = "fp32",
                  int64_t vocabulary = 64) {
  Job job = {.data = RandomJob(SmallModel(family, vocabulary), 8, kLength),
             .layout = MatrixLayout()};
  job.layout.set_precision(precision);
  job.layout.set_micro_batches(3);
  return job;
}

// Elements of the units of one stage, by what becomes of them.
struct Units {
  std::vector<int64_t> layers;
  int64_t embedding = 0;  // positions included; with its uses in a pass
  int64_t head = 0;
  int64_t vectors = 0;  // norms and biases: always whole
  int64_t all() const {
    return std::accumulate(layers.begin(), layers.end(), embedding + head + vectors);
  }
  // Bytes of all, gathered once.
  int64_t weights(const Job& job) const {
    const int64_t matrices = std::accumulate(layers.begin(), layers.end(), head);
    return job.matrix() * matrices + job.table() * embedding + kF32 * vectors;
  }
};

// The matrices of a layer as they are stored: tensors with one input are one.
inline std::vector<int64_t> LayerMatrices(const ModelConfig& c) {
  const int64_t h = c.hidden, heads = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  const bool gpt = c.mlp == MlpKind::kPlain;
  return {h * (heads + 2 * kv), heads * h, (gpt ? 1 : 2) * h * c.intermediate, c.intermediate * h};
}

// What lies in buckets without ZeRO.
inline int64_t GradientElements(const Job& job) {
  const ModelConfig& c = job.config();
  int64_t elements = ElementsOf(job.data.model);
  const auto pad = [&](int64_t matrix) { elements += Pages(matrix) - matrix; };
  for (int64_t i = 0; i < c.layers; ++i) {
    for (int64_t matrix : LayerMatrices(c)) pad(matrix);
  }
  pad(c.vocabulary * c.hidden);
  if (!c.tied_embeddings) pad(c.vocabulary * c.hidden);
  if (c.mlp == MlpKind::kPlain) pad(job.data.model.config.max_positions * c.hidden);
  return elements;
}

// Of a whole model on one tensor-parallel rank.
inline Units UnitsOf(const Job& job, int64_t shards) {
  const ModelConfig& c = job.config();
  const int64_t h = c.hidden;
  const bool gpt = c.mlp == MlpKind::kPlain;
  const std::vector<int64_t> layer = LayerMatrices(c);
  std::vector<int64_t> vectors;
  for (int64_t i = 0; i < c.layers; ++i) {
    if (gpt) {
      for (int64_t n : {h, h, 3 * h, h, h, h, c.intermediate, h}) vectors.push_back(n);
    } else {
      vectors.push_back(h);
      if (c.qk_norm) vectors.insert(vectors.end(), {c.head_dim, c.head_dim});
      vectors.push_back(h);
    }
  }
  vectors.push_back(h);
  if (gpt) vectors.push_back(h);
  Units units = {.layers = std::vector<int64_t>(c.layers, UnitElements(layer, shards, job.page())),
                 .embedding = UnitElements({c.vocabulary * h}, shards, job.page()),
                 .vectors = UnitElements(vectors, shards, /*page=*/0)};
  if (gpt) {
    units.embedding += UnitElements({job.data.model.config.max_positions * h}, shards, job.page());
  }
  if (!c.tied_embeddings) units.head = UnitElements({c.vocabulary * h}, shards, job.page());
  return units;
}

// ---- runs

// `expected` of a rank by its number.
template <typename F>
void ExpectSent(const Job& job, F expected) {
  const JobResult result = TrainLayout(job.data, job.layout, 2);
  ASSERT_EQ(result.sent_per_step.size(), static_cast<size_t>(job.ranks()));
  for (int64_t rank = 0; rank < job.ranks(); ++rank) {
    EXPECT_EQ(result.sent_per_step[rank], Sent(expected(rank)))
        << Describe(LayoutCase{job.config().family, job.layout}) << " rank " << rank;
  }
}

// Maximum, sum and the target's logit of each token, from everybody.
inline int64_t LossRows(const Job& job, int64_t ranks) {
  return job.tokens() * 3 * kF32 * (ranks - 1);
}

}  // namespace terrace
