// The bytes that each rank sends in a step, counted by the communicator, against what the
// dimensions of the model and of the layout say. Nothing here is read off the programs.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "tests/system/layout_data.h"

namespace terrace {
namespace {

constexpr int64_t kLength = 16;
constexpr int64_t kF32 = 4;

using Sent = std::map<std::string, int64_t>;  // bytes of one rank and step, by group

// ---- what patterns cost (worker/comm/communicator.h)

// Of `elements` in N parts, the last ones short; a member sends all parts but one, twice.
int64_t AllReduce(int64_t elements, int64_t members, int64_t member, int64_t size = kF32) {
  const int64_t part = (elements + members - 1) / members;
  const auto held = [&](int64_t p) {
    return std::clamp<int64_t>(elements - p % members * part, 0, part);
  };
  return size * (2 * elements - held(member) - held(member + 1));
}

// Reduce-scatter, all-gather and all-to-all of N equal parts.
int64_t Share(int64_t bytes, int64_t members) { return bytes / members * (members - 1); }

// ---- sizes

// A vocabulary of 64: every tensor is a multiple of every number of ranks here.
Model SmallModel(const std::string& family, int64_t vocabulary = 64) {
  return TinyModel(family, {.vocabulary = vocabulary, .layers = 4, .sequence = kLength});
}

int64_t ElementsOf(const Model& model) {
  return std::accumulate(model.tensors.begin(), model.tensors.end(), int64_t{0},
                         [](int64_t sum, const Tensor& tensor) { return sum + tensor.elements(); });
}

int64_t AlignUp(int64_t elements, int64_t to) { return (elements + to - 1) / to * to; }

// A matrix of a page or more begins on a page, as it may rest off the device.
constexpr int64_t kPage = 4096 / kF32;
int64_t Pages(int64_t elements) { return elements < kPage ? elements : AlignUp(elements, kPage); }

// What ZeRO shares as one region: its parameters start on 64 bytes, and so does each rank's piece,
// or on a page where it holds matrices.
int64_t UnitElements(const std::vector<int64_t>& parameters, int64_t shards, bool vectors = false) {
  constexpr int64_t kLine = 64 / kF32;
  int64_t end = 0;
  for (int64_t elements : parameters) end = AlignUp(end, kLine) + elements;
  const int64_t share = (end + shards - 1) / shards;
  return AlignUp(share, !vectors && share >= kPage ? kPage : kLine) * shards;
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
  int64_t tokens() const {  // of a micro-batch on one rank
    return layout.micro_batch() * kLength / layout.context_parallel();
  }
  int64_t hidden_bytes() const { return tokens() * config().hidden * activation(); }
  int64_t layers() const { return config().layers; }
};

Job NewJob(const std::string& family, const std::string& precision = "fp32",
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
};

// The matrices of a layer as they are stored: tensors with one input are one.
std::vector<int64_t> LayerMatrices(const ModelConfig& c) {
  const int64_t h = c.hidden, heads = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  const bool gpt = c.mlp == MlpKind::kGelu;
  return {h * (heads + 2 * kv), heads * h, (gpt ? 1 : 2) * h * c.intermediate, c.intermediate * h};
}

// What lies in buckets without ZeRO.
int64_t GradientElements(const Job& job) {
  const ModelConfig& c = job.config();
  int64_t elements = ElementsOf(job.data.model);
  const auto pad = [&](int64_t matrix) { elements += Pages(matrix) - matrix; };
  for (int64_t i = 0; i < c.layers; ++i) {
    for (int64_t matrix : LayerMatrices(c)) pad(matrix);
  }
  pad(c.vocabulary * c.hidden);
  if (!c.tied_embeddings) pad(c.vocabulary * c.hidden);
  if (c.mlp == MlpKind::kGelu) pad(job.data.model.config.max_positions * c.hidden);
  return elements;
}

// Of a whole model on one tensor-parallel rank.
Units UnitsOf(const Job& job, int64_t shards) {
  const ModelConfig& c = job.config();
  const int64_t h = c.hidden;
  const bool gpt = c.mlp == MlpKind::kGelu;
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
  Units units = {.layers = std::vector<int64_t>(c.layers, UnitElements(layer, shards)),
                 .embedding = UnitElements({c.vocabulary * h}, shards),
                 .vectors = UnitElements(vectors, shards, /*vectors=*/true)};
  if (gpt) units.embedding += UnitElements({job.data.model.config.max_positions * h}, shards);
  if (!c.tied_embeddings) units.head = UnitElements({c.vocabulary * h}, shards);
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

// ---- data parallelism

TEST(BytesTest, DataParallelRanksSendTheGradientTwice) {
  for (const char* precision : {"fp32", "bf16"}) {
    for (uint32_t ranks : {2, 4}) {
      Job job = NewJob("gpt2", precision);
      job.layout.set_data_parallel(ranks);
      const int64_t gradient = kF32 * GradientElements(job);
      ExpectSent(job, [&](int64_t rank) -> Sent {
        return {{"data", 2 * gradient / ranks * (ranks - 1)},
                {"totals", AllReduce(2, ranks, rank)}};
      });
    }
  }
}

// Parts that are not equal: members send different numbers, of 2 V (N - 1) together. V counts whole
// pages of matrices.
TEST(BytesTest, GradientsThatRanksDoNotDivideAreSentWithoutMorePadding) {
  Job job = NewJob("llama", "fp32", /*vocabulary=*/61);
  job.layout.set_data_parallel(3);
  const JobResult result = TrainLayout(job.data, job.layout, 2);
  int64_t sent = 0;
  for (const Sent& rank : result.sent_per_step) sent += rank.at("data");
  EXPECT_EQ(sent, 2 * 2 * kF32 * GradientElements(job));
}

// Gradients are rounded before they are sent; the two numbers of the loss are not.
TEST(BytesTest, CommunicationInBF16SendsHalfOfTheGradient) {
  Job job = NewJob("gpt2", "bf16");
  job.layout.set_data_parallel(4);
  job.layout.set_communication_dtype("bf16");
  const int64_t gradient = 2 * GradientElements(job);
  ExpectSent(job, [&](int64_t rank) -> Sent {
    return {{"data", 2 * gradient / 4 * 3}, {"totals", AllReduce(2, 4, rank)}};
  });
  job.layout.set_zero_stage(2);  // weights are gathered in f32
  const int64_t units = UnitsOf(job, 4).all();
  ExpectSent(job, [&](int64_t rank) -> Sent {
    return {{"shard", Share((2 * job.passes() + kF32) * units, 4)},
            {"totals", AllReduce(2, 4, rank)},
            {"model", AllReduce(1, 4, rank)}};
  });
}

// ---- ZeRO

void ExpectZero(const std::string& family, uint32_t stage, uint32_t ranks, uint32_t replicas) {
  Job job = NewJob(family);
  const int64_t shards = ranks / replicas;
  job.layout.set_data_parallel(ranks);
  job.layout.set_zero_stage(stage);
  if (replicas > 1) job.layout.set_shard_size(static_cast<uint32_t>(shards));
  const Units units = UnitsOf(job, shards);
  const int64_t reductions = stage == 1 ? 1 : job.passes();
  int64_t gathers = units.all();  // once, after the update
  if (stage == 3) {
    // The embedding in the forward pass and, tied, once more as the head; layers in both
    // directions.
    gathers = units.vectors + job.passes() * (units.embedding + units.head);
    for (int64_t layer : units.layers) gathers += 2 * job.passes() * layer;
    if (job.config().tied_embeddings) {
      gathers +=
          job.passes() * UnitElements({job.config().vocabulary * job.config().hidden}, shards);
    }
  }
  const int64_t parts = reductions * units.all() + gathers;
  ExpectSent(job, [&](int64_t rank) -> Sent {
    Sent sent = {{"shard", Share(kF32 * parts, shards)},
                 {"totals", AllReduce(2, ranks, rank)},
                 {"model", AllReduce(1, shards, rank % shards)}};
    if (replicas > 1) {  // the shards of all units, once
      sent["replica"] = AllReduce(units.all() / shards, replicas, rank / shards);
    }
    return sent;
  });
}

TEST(BytesTest, ZeroScattersGradientsAndGathersWeights) {
  for (const char* family : {"gpt2", "llama", "qwen3"}) {
    for (uint32_t stage : {1, 2, 3}) ExpectZero(family, stage, /*ranks=*/2, /*replicas=*/1);
  }
  for (uint32_t stage : {1, 2, 3}) ExpectZero("qwen3", stage, /*ranks=*/4, /*replicas=*/1);
}

TEST(BytesTest, ReplicasOfShardsSendOnlyTheirShard) {
  for (uint32_t stage : {1, 2, 3}) ExpectZero("gpt2", stage, /*ranks=*/4, /*replicas=*/2);
}

// ---- tensor and sequence parallelism

// Norms and biases that every tensor-parallel rank holds.
int64_t WholeVectors(const ModelConfig& c) {
  const int64_t norms = c.norm == NormKind::kLayerNorm ? 2 * c.hidden : c.hidden;
  const int64_t biases = c.mlp == MlpKind::kGelu ? 2 * c.hidden : 0;  // of the products by inputs
  return c.layers * (2 * norms + biases) + norms;
}
int64_t HeadNorms(const ModelConfig& c) { return c.qk_norm ? c.layers * 2 * c.head_dim : 0; }

// Maximum, sum and the target's logit of each token, from everybody.
int64_t LossRows(const Job& job, int64_t ranks) { return job.tokens() * 3 * kF32 * (ranks - 1); }

// The embedding and two products of each layer are summed forward, the inputs of the others and of
// the head backward: each sum is an all-reduce of the hidden state.
TEST(BytesTest, TensorParallelRanksSumTheHiddenStateFourTimesALayer) {
  for (const char* precision : {"fp32", "bf16"}) {
    for (const char* family : {"gpt2", "llama", "qwen3"}) {
      Job job = NewJob(family, precision);
      job.layout.set_tensor_parallel(2);
      const int64_t sums = 4 * job.layers() + 2;
      const int64_t pass = sums * 2 * Share(job.hidden_bytes(), 2) + LossRows(job, 2);
      ExpectSent(job, [&](int64_t rank) -> Sent {
        return {{"tensor", job.passes() * pass + AllReduce(HeadNorms(job.config()), 2, rank)},
                {"model", AllReduce(1, 2, rank)}};
      });
    }
  }
}

// Four ranks, two key-value heads: pairs of ranks hold the same one and sum its gradients.
TEST(BytesTest, RanksThatShareAKeyValueHeadSumItsGradient) {
  Job job = NewJob("llama");
  job.layout.set_tensor_parallel(4);
  const int64_t pass = (4 * job.layers() + 2) * 2 * Share(job.hidden_bytes(), 4) + LossRows(job, 4);
  const int64_t keys_and_values = job.layers() * 2 * job.config().head_dim * job.config().hidden;
  ExpectSent(job, [&](int64_t rank) -> Sent {
    return {{"tensor", job.passes() * pass},
            {"tensor_block", AllReduce(keys_and_values, 2, rank % 2)},
            {"model", AllReduce(1, 4, rank)}};
  });
}

// Each all-reduce becomes a reduce-scatter and an all-gather of half the bytes, which have their
// counterparts in the other direction.
TEST(BytesTest, SequenceParallelismSendsWhatTensorParallelismDoes) {
  for (const char* family : {"gpt2", "llama", "qwen3"}) {
    Job job = NewJob(family, "bf16");
    job.layout.set_tensor_parallel(2);
    job.layout.set_sequence_parallel(true);
    const int64_t halves = 2 * (4 * job.layers() + 2);
    const int64_t pass = halves * Share(job.hidden_bytes(), 2) + LossRows(job, 2);
    const int64_t vectors = WholeVectors(job.config()) + HeadNorms(job.config());
    ExpectSent(job, [&](int64_t rank) -> Sent {
      return {{"tensor", job.passes() * pass + AllReduce(vectors, 2, rank)},
              {"model", AllReduce(1, 2, rank)}};
    });
  }
}

// ---- context parallelism

// Keys and values go all but once round the ring in both directions; their gradients, in f32, all
// the way.
TEST(BytesTest, RingAttentionSendsKeysAndValuesRound) {
  for (const char* precision : {"fp32", "bf16"}) {
    for (uint32_t ranks : {2, 4}) {
      Job job = NewJob("llama", precision);
      job.layout.set_context_parallel(ranks);
      const int64_t pair = job.tokens() * 2 * job.config().kv_heads * job.config().head_dim;
      const int64_t layer = 2 * (ranks - 1) * pair * job.activation() + ranks * pair * kF32;
      const int64_t gradient = kF32 * GradientElements(job);
      ExpectSent(job, [&](int64_t rank) -> Sent {
        return {{"context", job.passes() * job.layers() * layer},
                {"data", 2 * gradient / ranks * (ranks - 1)},
                {"totals", AllReduce(2, ranks, rank)}};
      });
    }
  }
}

// q, k, v and the result change places, and so do their gradients.
TEST(BytesTest, UlyssesExchangesHeadsForTokens) {
  for (const char* precision : {"fp32", "bf16"}) {
    Job job = NewJob("llama", precision);
    job.layout.set_context_parallel(2);
    job.layout.set_context_type("ulysses");
    const ModelConfig& c = job.config();
    const int64_t columns = 2 * (c.heads + c.kv_heads) * c.head_dim;
    const int64_t layer = 2 * Share(job.tokens() * columns * job.activation(), 2);
    ExpectSent(job, [&](int64_t rank) -> Sent {
      return {{"context", job.passes() * job.layers() * layer},
              {"data", kF32 * GradientElements(job)},
              {"totals", AllReduce(2, 2, rank)}};
    });
  }
}

// ---- pipelines

// How often a stage sends a micro-batch on: once for each of its model chunks that the next one of
// another stage follows. `before` instead of next: the way back.
int64_t Sends(const std::vector<int>& stage_of_chunk, int stage, bool backward) {
  int64_t sends = 0;
  const int chunks = static_cast<int>(stage_of_chunk.size());
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const int peer = backward ? chunk - 1 : chunk + 1;
    if (stage_of_chunk[chunk] == stage && peer >= 0 && peer < chunks &&
        stage_of_chunk[peer] != stage) {
      ++sends;
    }
  }
  return sends;
}

struct Pipeline {
  std::string schedule;
  std::vector<int> stage_of_chunk;
  int stages;
};

void ExpectPipeline(Job job, const Pipeline& pipeline) {
  const int stages = pipeline.stages;
  job.layout.set_pipeline_parallel(stages);
  job.layout.set_schedule(pipeline.schedule);
  job.layout.set_interleave(static_cast<uint32_t>(pipeline.stage_of_chunk.size()) / stages);
  job.layout.set_micro_batches(4);
  const int last = pipeline.stage_of_chunk.back();
  const int64_t table = job.config().vocabulary * job.config().hidden;
  ExpectSent(job, [&](int64_t rank) -> Sent {
    const int stage = static_cast<int>(rank);
    const auto sends = [&](bool backward) {
      return job.passes() * job.hidden_bytes() * Sends(pipeline.stage_of_chunk, stage, backward);
    };
    Sent sent = {{"pipeline_forward", sends(false)},
                 {"pipeline_backward", sends(true)},
                 {"totals", AllReduce(2, stages, rank)},
                 {"model", AllReduce(1, stages, rank)}};
    const bool holds_table = stage == 0 || stage == last;
    if (job.config().tied_embeddings && last != 0 && holds_table) {
      sent["tied"] = AllReduce(table, 2, stage == 0 ? 0 : 1);
    }
    return sent;
  });
}

TEST(BytesTest, PipelineStagesSendTheHiddenStateBothWays) {
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1"}) {
    ExpectPipeline(NewJob("llama", "bf16"), {schedule, {0, 1}, 2});
    ExpectPipeline(NewJob("llama"), {schedule, {0, 1, 2, 3}, 4});
  }
  ExpectPipeline(NewJob("llama"), {"interleaved", {0, 1, 0, 1}, 2});
  ExpectPipeline(NewJob("llama"), {"zbv", {0, 1, 1, 0}, 2});
}

TEST(BytesTest, StagesThatShareATableSumItsGradient) {
  ExpectPipeline(NewJob("gpt2"), {"1f1b", {0, 1, 2, 3}, 4});
  ExpectPipeline(NewJob("gpt2"), {"interleaved", {0, 1, 0, 1}, 2});
  ExpectPipeline(NewJob("gpt2"), {"zbv", {0, 1, 1, 0}, 2});  // one stage holds both ends
}

// ---- all at once

// rank = ((stage * S + shard) * C + context) * T + tensor. Two layers, half a table and half of
// every product on each rank; the four ranks that differ in their tokens share what they hold.
TEST(BytesTest, PassesAddUp) {
  Job job = NewJob("llama", "bf16");
  job.layout.set_data_parallel(1);
  job.layout.set_context_parallel(2);
  job.layout.set_tensor_parallel(2);
  job.layout.set_sequence_parallel(true);
  job.layout.set_pipeline_parallel(2);
  job.layout.set_zero_stage(3);
  const ModelConfig& c = job.config();
  const int64_t h = c.hidden, heads = c.heads * c.head_dim / 2, kv = c.kv_heads * c.head_dim / 2;
  const int64_t f = c.intermediate / 2;
  const int64_t layer = UnitElements({h * (heads + 2 * kv), heads * h, 2 * h * f, f * h}, 2);
  const int64_t table = UnitElements({c.vocabulary / 2 * h}, 2);
  ExpectSent(job, [&](int64_t rank) -> Sent {
    const bool last = rank >= 4;
    const int64_t norms = 2 * 2 * h + (last ? h : 0);
    const int64_t vectors = UnitElements(std::vector<int64_t>(norms / h, h), 2);
    // Once to scatter gradients, and to gather a table once, layers twice; vectors after the
    // update.
    const int64_t shard = job.passes() * (2 * 3 * layer + 2 * table + vectors) + vectors;
    // Entering and leaving each block, both ways, and the embedding or the head.
    const int64_t pass =
        (2 * 2 * 4 + 2) * Share(job.hidden_bytes(), 2) + (last ? LossRows(job, 2) : 0);
    const int64_t ring = job.tokens() * 2 * kv;
    const int64_t hidden = job.hidden_bytes() / 2;  // the tokens of one tensor-parallel rank
    const int64_t context = rank / 2 % 2;
    return {{"tensor", job.passes() * (pass + AllReduce(vectors, 2, rank % 2))},
            {"context", job.passes() * 2 * ring * (2 * job.activation() + 2 * kF32)},
            {"shard", Share(kF32 * shard, 2)},
            {"pipeline_forward", last ? 0 : job.passes() * hidden},
            {"pipeline_backward", last ? job.passes() * hidden : 0},
            {"totals", AllReduce(2, 4, rank / 4 * 2 + context)},
            {"model", AllReduce(1, 8, rank)}};
  });
}

}  // namespace
}  // namespace terrace
