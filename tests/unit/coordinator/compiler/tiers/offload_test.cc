// What rests off the device: every layout compiles, passes the checker, and needs less of the
// device; nothing else of the computation changes.
//
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "proto/check/program_check.h"
#include "proto/program/tiers.h"
#include "tests/unit/coordinator/compiler/tiny_jobs.h"

namespace terrace {
namespace {

constexpr TinySizes kSizes = {.vocabulary = 131, .hidden = 64, .intermediate = 96};

// The head and all matrices of the MLP are in tiles, of GPT-2 the product of q, k and v as well.
std::vector<TinyJob> TiledJobs(TinyJob job) {
  std::vector<TinyJob> jobs;
  for (const char* family : {"llama", "gpt2"}) {
    for (const char* recompute : {"none", "selective", "block"}) {
      const bool llama = family == std::string("llama");
      job.family = family;
      job.sizes = {
          .vocabulary = 700, .hidden = llama ? 64 : 128, .intermediate = llama ? 700 : 512};
      job.tile_bytes = 256 * job.sizes.hidden * 4;
      job.recompute = recompute;
      job.micro_batches = 2;
      jobs.push_back(job);
    }
    TinyJob zero = job;
    zero.data_parallel = 2;
    zero.zero_stage = 3;
    jobs.push_back(zero);
    zero.parameter = zero.gradient = zero.optimizer = v1::DEVICE;
    jobs.push_back(zero);
    TinyJob pipeline = job;
    pipeline.pipeline_parallel = 2;
    pipeline.precision = "bf16";
    jobs.push_back(pipeline);
  }
  return jobs;
}

std::vector<TinyJob> OffloadedJobs() {
  std::vector<TinyJob> jobs;
  for (const v1::Tier tier : {v1::HOST, v1::NVME}) {
    TinyJob optimizer = {.optimizer = tier};
    TinyJob gradient = {.gradient = tier, .optimizer = tier};
    TinyJob all = {.parameter = tier, .gradient = tier, .optimizer = tier};
    for (TinyJob job : {optimizer, gradient, all}) {
      for (const char* family : {"gpt2", "qwen3"}) {
        job.family = family;
        job.micro_batches = 1;
        jobs.push_back(job);
        job.micro_batches = 3;
        jobs.push_back(job);
      }
    }
    for (const uint32_t zero : {1, 2, 3}) {
      TinyJob job = zero == 3 ? all : gradient;
      job.family = "llama";
      job.data_parallel = 2;
      job.micro_batches = 2;
      job.zero_stage = zero;
      jobs.push_back(job);
    }
    TinyJob pipeline = all;
    pipeline.family = "llama";
    pipeline.pipeline_parallel = 2;
    pipeline.micro_batches = 4;
    pipeline.recompute = "block";
    jobs.push_back(pipeline);
    for (const TinyJob& states : {gradient, all}) {  // a table that stages share
      for (const uint32_t zero : {0, 1, 3}) {
        TinyJob tied = states;
        tied.family = "gpt2";
        tied.pipeline_parallel = 2;
        tied.micro_batches = 8;
        tied.data_parallel = zero > 0 ? 2 : 1;
        tied.zero_stage = zero;
        if (zero > 0 && zero < 3) tied.parameter = v1::DEVICE;
        jobs.push_back(tied);
      }
    }
    TinyJob interleaved = {.family = "llama", .activation = tier};
    interleaved.sizes = {.vocabulary = 131, .hidden = 64, .layers = 8, .sequence = 256};
    interleaved.pipeline_parallel = 4;
    interleaved.schedule = "interleaved";
    interleaved.micro_batches = 8;
    jobs.push_back(interleaved);
    TinyJob tensor = all;
    tensor.tensor_parallel = 2;
    jobs.push_back(tensor);
    // Buckets that are written in two groups of layers, between which others are recomputed.
    for (const int64_t bucket_bytes : {20'000, 60'000, 200'000, 600'000}) {
      TinyJob groups = tensor;
      groups.recompute = "every";
      groups.recompute_every = 3;
      groups.bucket_bytes = bucket_bytes;
      groups.sizes = {.vocabulary = 131, .hidden = 64, .layers = 6, .intermediate = 96};
      jobs.push_back(groups);
    }
    for (const TinyJob& tiled : TiledJobs(all)) jobs.push_back(tiled);
    for (const uint32_t micro_batches : {1, 3}) {
      TinyJob activation = {.family = "llama", .activation = tier};
      activation.micro_batches = micro_batches;
      activation.sizes = {.vocabulary = 131, .hidden = 64, .layers = 6, .sequence = 256};
      activation.recompute = micro_batches == 1 ? "none" : "block";
      jobs.push_back(activation);
    }
  }
  for (TinyJob& job : jobs) {
    if (job.sizes.hidden == 32) job.sizes = kSizes;
  }
  return jobs;
}

struct CompiledJob {
  TinyJob job;
  std::vector<v1::Program> stages;
};

// Compiled once for all tests.
const std::vector<CompiledJob>& OffloadedPrograms() {
  static const auto* compiled = [] {
    auto* all = new std::vector<CompiledJob>;
    for (const TinyJob& job : OffloadedJobs()) all->push_back({job, CompileStages(job)});
    return all;
  }();
  return *compiled;
}

// The computations of "train" in list order, without those of the optimizer, which come in chunks.
std::vector<std::string> Computations(const v1::Program& program) {
  std::vector<std::string> texts;
  for (const v1::Instruction& i : SequenceOf(program, "train").instructions()) {
    if (i.has_compute() && i.compute().op() != "update") texts.push_back(i.text());
  }
  return texts;
}

int64_t DeviceBytes(const v1::Program& program) { return program.arenas(0).bytes(); }

TEST(OffloadTest, EveryLayoutPassesTheChecker) {
  for (const auto& [job, stages] : OffloadedPrograms()) {
    const absl::Status checked = CheckPrograms(stages);
    EXPECT_TRUE(checked.ok()) << Describe(job) << ": " << checked;
  }
}

TEST(OffloadTest, TheComputationIsTheSameAsWithout) {
  for (auto [job, stages] : OffloadedPrograms()) {
    const std::vector<std::string> offloaded = Computations(stages.at(0));
    job.parameter = job.gradient = job.optimizer = v1::DEVICE;
    if (job.zero_stage > 0) continue;  // squares of what is reduced come earlier
    if (job.tile_bytes > 0) continue;  // only what is off the device is tiled
    EXPECT_EQ(Computations(CompileTiny(job)), offloaded) << Describe(job);
  }
}

// Of each parameter once, in list order.
std::vector<std::string> Updates(const v1::Program& program) {
  std::vector<std::string> texts;
  for (const v1::Instruction& i : SequenceOf(program, "train").instructions()) {
    if (!i.has_compute() || i.compute().op() != "update") continue;
    if (texts.empty() || texts.back() != i.text()) texts.push_back(i.text());
  }
  return texts;
}

TEST(OffloadTest, WhatLeftFirstIsUpdatedFirst) {
  for (const v1::Tier tier : {v1::HOST, v1::NVME}) {
    TinyJob job = {.gradient = tier, .optimizer = tier};
    job.family = "llama";
    const std::vector<std::string> updates = Updates(CompileTiny(job));
    EXPECT_EQ(updates.front(), "adamw lm_head.weight");
    job.gradient = job.optimizer = v1::DEVICE;
    std::vector<std::string> resident = Updates(CompileTiny(job));
    std::reverse(resident.begin(), resident.end());
    EXPECT_EQ(updates, resident);
  }
}

TEST(OffloadTest, StatesLieWhereTheLayoutSays) {
  for (const auto& [job, stages] : OffloadedPrograms()) {
    const v1::Program& program = stages.at(0);
    std::map<v1::Tier, int64_t> moments;
    for (const v1::Buffer& buffer : program.buffers()) {
      if (buffer.class_() == v1::OPTIMIZER) moments[TierOf(program, buffer)] += buffer.bytes();
    }
    if (job.optimizer == v1::DEVICE) continue;
    EXPECT_GT(moments[job.optimizer], 8 * moments[v1::DEVICE]) << Describe(job);
  }
}

int64_t HostBytes(const v1::Program& program) {
  int64_t bytes = 0;
  for (const v1::Arena& arena : program.arenas()) {
    if (arena.tier() == v1::HOST) bytes += arena.bytes();
  }
  return bytes;
}

// Every stream that uses the host knows when the passes before it are over, also one that runs for
// the first time when the optimizer's states are loaded: what a pass held there is free for the
// next.
TEST(OffloadTest, TheHostHoldsNoMoreOfMorePasses) {
  using States = std::array<v1::Tier, 3>;  // weights, gradients, moments
  for (const States& states : {States{v1::DEVICE, v1::DEVICE, v1::DEVICE},
                               {v1::DEVICE, v1::HOST, v1::HOST},
                               {v1::DEVICE, v1::HOST, v1::NVME},
                               {v1::DEVICE, v1::NVME, v1::NVME},
                               {v1::HOST, v1::HOST, v1::HOST},
                               {v1::HOST, v1::HOST, v1::NVME},
                               {v1::NVME, v1::NVME, v1::NVME}}) {
    for (const uint32_t zero : {0, 1, 3}) {
      TinyJob job = {.family = "llama", .activation = v1::HOST};
      job.sizes = {.vocabulary = 131, .hidden = 64, .layers = 2, .sequence = 256};
      job.parameter = zero == 1 ? v1::DEVICE : states[0];
      job.gradient = states[1];
      job.optimizer = states[2];
      job.zero_stage = zero;
      job.data_parallel = zero > 0 ? 2 : 1;
      job.micro_batches = 3;
      const int64_t few = HostBytes(CompileTiny(job));
      job.micro_batches = 9;
      EXPECT_LE(static_cast<double>(HostBytes(CompileTiny(job))), 1.01 * static_cast<double>(few))
          << Describe(job);
    }
  }
}

// Of the fetches of a layer's weights: how many stand before a computation of each layer
// and micro-batch, and behind the one before.
std::map<int, std::map<int, int>> FetchedDuring(const v1::Sequence& train, int layer) {
  const std::string name = absl::StrCat("fetch model.layers.", layer, ".");
  std::map<int, std::map<int, int>> during;
  int of_layer = -1, micro_batch = -1;
  for (int k = train.instructions_size(); k-- > 0;) {
    const v1::Instruction& i = train.instructions(k);
    if (i.has_compute() && i.layer() >= 0) of_layer = i.layer(), micro_batch = i.micro_batch();
    if (absl::StartsWith(i.text(), name)) ++during[of_layer][micro_batch];
  }
  return during;
}

// All of the run that computes one layer hides what prefetches the next one's weights: each
// micro-batch its share of the pieces, and two that a layer's first and last computations leave to
// neighbours.
TEST(OffloadTest, WeightsOfARunComeThroughTheRunBefore) {
  constexpr int kLayers = 4, kMicroBatches = 6;
  for (const v1::Tier tier : {v1::HOST, v1::NVME}) {
    TinyJob job = {.family = "llama", .parameter = tier, .optimizer = tier, .activation = tier};
    job.sizes = {.vocabulary = 131, .hidden = 128, .layers = kLayers, .sequence = 64};
    job.schedule = "breadth_first";
    job.interleave = kLayers;
    job.micro_batches = kMicroBatches;
    job.recompute = "block";
    const v1::Program program = CompileTiny(job);
    const v1::Sequence& train = SequenceOf(program, "train");
    for (int layer = 1; layer + 1 < kLayers; ++layer) {
      const auto during = FetchedDuring(train, layer);
      EXPECT_EQ(during.size(), 2u) << Describe(job);  // forward, and back
      for (const int before : {layer - 1, layer + 1}) {
        ASSERT_TRUE(during.contains(before)) << Describe(job) << layer;
        int all = 0;
        for (const auto& [micro_batch, pieces] : during.at(before)) all += pieces;
        ASSERT_GT(all, 3 * kMicroBatches) << Describe(job);
        for (const auto& [micro_batch, pieces] : during.at(before)) {
          EXPECT_LE(pieces, all / kMicroBatches + 2)
              << Describe(job) << layer << ", micro-batch " << micro_batch;
        }
      }
    }
  }
}

// Nothing that is prefetched for a product is larger than a tile; only a table is looked up whole.
// What is recomputed and the backward pass prefetch tiles apart, so that a layer is never there
// whole.
TEST(OffloadTest, TilesBoundWhatIsOnTheDeviceOfALayer) {
  for (const auto& [job, stages] : OffloadedPrograms()) {
    if (job.tile_bytes == 0) continue;
    int64_t tiles = 0;
    for (const v1::Program& program : stages) {
      for (const v1::Buffer& buffer : program.buffers()) {
        const bool prefetched = buffer.class_() == v1::PARAMETER && buffer.lifetime() == v1::STEP &&
                                TierOf(program, buffer) == v1::DEVICE;
        if (!prefetched || absl::StrContains(buffer.name(), "embed") ||
            absl::StrContains(buffer.name(), "wte"))
          continue;
        EXPECT_LE(buffer.bytes(), job.tile_bytes + kNvmeAlignment)
            << Describe(job) << buffer.name();
        tiles += absl::StrContains(buffer.name(), ".tile");
      }
    }
    EXPECT_GT(tiles, 0) << Describe(job);
    TinyJob whole = job;
    whole.tile_bytes = 0;
    EXPECT_LT(DeviceBytes(stages.at(0)), DeviceBytes(CompileTiny(whole))) << Describe(job);
  }
}

}  // namespace
}  // namespace terrace
