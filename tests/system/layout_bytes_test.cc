// The bytes that each rank sends in a step, counted by the communicator, against what the
// dimensions of the model and of the layout say. Nothing here is read off the programs.
//
// SPDX-License-Identifier: Apache-2.0
#include "tests/system/layout_bytes.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace terrace {
namespace {

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
  job.layout.set_reduce_format("bf16");
  const int64_t gradient = 2 * GradientElements(job);
  ExpectSent(job, [&](int64_t rank) -> Sent {
    return {{"data", 2 * gradient / 4 * 3}, {"totals", AllReduce(2, 4, rank)}};
  });
  job.layout.set_zero_stage(2);
  const Units units = UnitsOf(job, 4);
  ExpectSent(job, [&](int64_t rank) -> Sent {
    return {{"shard", Share(2 * job.passes() * units.all() + units.weights(job), 4)},
            {"totals", AllReduce(2, 4, rank)},
            {"model", AllReduce(1, 4, rank)}};
  });
}

// Between replicas the sums of shards are sent: those of matrices in bf16, of vectors in f32.
TEST(BytesTest, GradientsInBF16AreSentAsTheyAre) {
  for (const char* family : {"gpt2", "llama"}) {
    Job job = NewJob(family, "bf16");
    job.layout.set_data_parallel(4);
    job.layout.set_shard_size(2);
    job.layout.set_gradient_format("bf16");
    for (const uint32_t stage : {1, 2}) {
      job.layout.set_zero_stage(stage);
      const Units units = UnitsOf(job, 2);
      const int64_t reductions = stage == 1 ? 1 : job.passes();
      const int64_t matrices = units.all() - units.vectors;
      ExpectSent(job, [&](int64_t rank) -> Sent {
        return {{"shard", Share(2 * reductions * units.all() + units.weights(job), 2)},
                {"replica", AllReduce((matrices / 2 + units.vectors) / 2, 2, rank / 2)},
                {"totals", AllReduce(2, 4, rank)},
                {"model", AllReduce(1, 2, rank % 2)}};
      });
    }
  }
}

// ---- ZeRO

void ExpectZero(Job job, uint32_t stage, uint32_t ranks, uint32_t replicas) {
  const int64_t shards = ranks / replicas;
  job.layout.set_data_parallel(ranks);
  job.layout.set_zero_stage(stage);
  if (replicas > 1) job.layout.set_shard_size(static_cast<uint32_t>(shards));
  const Units units = UnitsOf(job, shards);
  // How often weights are gathered for a direction, and gradients scattered.
  const int64_t travels = job.layout.schedule() == "breadth_first" ? 1 : job.passes();
  const int64_t reductions = stage == 1 ? 1 : travels;
  int64_t gathered = units.weights(job);  // bytes, once, before the first pass
  if (stage == 3) {
    // The embedding in the forward pass and, tied, once more as the head; layers in both
    // directions.
    gathered = kF32 * units.vectors +
               travels * (job.table() * units.embedding + job.matrix() * units.head);
    for (int64_t layer : units.layers) gathered += 2 * travels * job.matrix() * layer;
    // One run over all layers has the table from its embedding on.
    const bool there = job.layout.schedule() == "breadth_first" && job.layout.interleave() == 1;
    if (job.config().tied_embeddings && !there) {
      gathered += travels * job.table() *
                  UnitElements({job.config().vocabulary * job.config().hidden}, shards, job.page());
    }
  }
  int64_t scattered = reductions * units.all();
  if (stage > 1 && job.layout.interleave() > 1 && job.config().tied_embeddings) {
    // Its two uses are in two chunks, which scatter their gradients one after the other.
    scattered +=
        travels * UnitElements({job.config().vocabulary * job.config().hidden}, shards, job.page());
  }
  ExpectSent(job, [&](int64_t rank) -> Sent {
    Sent sent = {{"shard", Share(kF32 * scattered + gathered, shards)},
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
    for (uint32_t stage : {1, 2, 3}) ExpectZero(NewJob(family), stage, /*ranks=*/2, /*replicas=*/1);
  }
  for (uint32_t stage : {1, 2, 3}) ExpectZero(NewJob("qwen3"), stage, /*ranks=*/4, /*replicas=*/1);
}

// What products round anyway is rounded before it is sent.
TEST(BytesTest, ZeroGathersTheBitsThatProductsComputeWith) {
  for (const char* family : {"gpt2", "llama", "qwen3"}) {
    for (uint32_t stage : {1, 2, 3}) {
      ExpectZero(NewJob(family, "bf16"), stage, /*ranks=*/2, /*replicas=*/1);
    }
  }
  for (uint32_t stage : {1, 3}) ExpectZero(NewJob("llama", "bf16"), stage, /*ranks=*/4, 2);
}

TEST(BytesTest, ReplicasOfShardsSendOnlyTheirShard) {
  for (uint32_t stage : {1, 2, 3}) ExpectZero(NewJob("gpt2"), stage, /*ranks=*/4, /*replicas=*/2);
}

// However many micro-batches a step has, what a run of them needs travels once.
TEST(BytesTest, RunsOfMicroBatchesGatherOnceAStepAndDirection) {
  for (const char* family : {"gpt2", "llama"}) {
    for (const uint32_t micro_batches : {2, 8}) {
      for (const uint32_t chunks : {1, 2, 4}) {
        for (const uint32_t stage : {2, 3}) {
          Job job = NewJob(family);
          job.layout.set_micro_batches(micro_batches);
          job.layout.set_schedule("breadth_first");
          job.layout.set_interleave(chunks);
          ExpectZero(job, stage, /*ranks=*/2, /*replicas=*/1);
        }
      }
    }
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
  ExpectPipeline(NewJob("llama"), {"breadth_first", {0, 1, 0, 1}, 2});
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
  const int64_t layer =
      UnitElements({h * (heads + 2 * kv), heads * h, 2 * h * f, f * h}, 2, job.page());
  const int64_t table = UnitElements({c.vocabulary / 2 * h}, 2, job.page());
  ExpectSent(job, [&](int64_t rank) -> Sent {
    const bool last = rank >= 4;
    const int64_t norms = 2 * 2 * h + (last ? h : 0);
    const int64_t vectors = UnitElements(std::vector<int64_t>(norms / h, h), 2, /*page=*/0);
    const int64_t scattered = job.passes() * (2 * layer + table + vectors);
    // A table once, layers twice, in bf16; vectors before the first pass.
    const int64_t gathered = 2 * job.passes() * (2 * 2 * layer + table) + kF32 * vectors;
    // Entering and leaving each block, both ways, and the embedding or the head.
    const int64_t pass =
        (2 * 2 * 4 + 2) * Share(job.hidden_bytes(), 2) + (last ? LossRows(job, 2) : 0);
    const int64_t ring = job.tokens() * 2 * kv;
    const int64_t hidden = job.hidden_bytes() / 2;  // the tokens of one tensor-parallel rank
    const int64_t context = rank / 2 % 2;
    return {{"tensor", job.passes() * (pass + AllReduce(vectors, 2, rank % 2))},
            {"context", job.passes() * 2 * ring * (2 * job.activation() + 2 * kF32)},
            {"shard", Share(kF32 * scattered + gathered, 2)},
            {"pipeline_forward", last ? 0 : job.passes() * hidden},
            {"pipeline_backward", last ? job.passes() * hidden : 0},
            {"totals", AllReduce(2, 4, rank / 4 * 2 + context)},
            {"model", AllReduce(1, 8, rank)}};
  });
}

}  // namespace
}  // namespace terrace
