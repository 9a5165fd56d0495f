// What planning costs: packing (real and random problems, with the certificate arena/bound - 1),
// checking, simulating, and the whole of Prepare for GPT-2 124M with 8 micro-batches. Run by hand;
// results/pack-*.md keeps what was measured.
//
// SPDX-License-Identifier: Apache-2.0
#include <benchmark/benchmark.h>

#include <random>
#include <string>

#include "coordinator/compiler/pack.h"
#include "coordinator/model/presets.h"
#include "coordinator/planner/profiles.h"
#include "coordinator/planner/simulate.h"
#include "coordinator/prepare.h"
#include "proto/program_check.h"
#include "tests/unit/coordinator/compiler/pack_data.h"

namespace terrace {
namespace {

void PackAll(benchmark::State& state, const std::vector<PackBuffer>& buffers) {
  Packing packing;
  for (auto _ : state) packing = *Pack(buffers);
  state.counters["buffers"] = static_cast<double>(buffers.size());
  state.counters["over_bound_%"] =
      100 * (static_cast<double>(packing.arena_bytes) / packing.lower_bound_bytes - 1);
}

void BM_PackFile(benchmark::State& state, const std::string& name) {
  PackAll(state, ReadPackBuffers(TERRACE_PACK_DATA "/" + name));
}
BENCHMARK_CAPTURE(BM_PackFile, pangu_2 .6B, "pangu_2.6B.csv")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_PackFile, minimalloc_A, "A.1048576.csv")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_PackFile, minimalloc_K, "K.1048576.csv")->Unit(benchmark::kMillisecond);

// A step of `range` buffers: for each layer a kept activation, scratch on the way forward and back,
// and lengths that vary.
void BM_PackStep(benchmark::State& state) {
  std::mt19937 random(1);
  std::vector<PackBuffer> buffers;
  const int64_t layers = state.range(0) / 4;
  for (int64_t i = 0; i < layers; ++i) {
    const int64_t up = 4 * i, down = 8 * layers - 4 * i;
    const int64_t rows = 512 + static_cast<int64_t>(random() % 1536);
    buffers.push_back({.name = "kept", .bytes = rows * 1536, .begin = up, .end = down});
    buffers.push_back({.name = "inner", .bytes = rows * 6144, .begin = up + 1, .end = down - 1});
    buffers.push_back({.name = "scratch", .bytes = rows * 3072, .begin = up + 2, .end = up + 4});
    buffers.push_back(
        {.name = "gradient", .bytes = rows * 6144, .begin = down - 2, .end = down + 2});
  }
  PackAll(state, buffers);
}
BENCHMARK(BM_PackStep)->Arg(1000)->Arg(20000)->Arg(100000)->Unit(benchmark::kMillisecond);

v1::JobSpec Gpt2Spec(int64_t global_batch) {
  v1::JobSpec spec;
  spec.set_name("gpt2");
  spec.mutable_model()->set_config_json(std::string(FindPreset("gpt2")->config_json));
  spec.mutable_data()->set_sequence_length(512);
  v1::TrainSpec* train = spec.mutable_train();
  train->set_steps(100);
  train->set_global_batch(global_batch);
  train->set_precision("bf16");
  train->set_clip_grad_norm(1);
  train->mutable_optimizer()->set_lr(6e-4);
  train->mutable_optimizer()->set_beta1(0.9);
  train->mutable_optimizer()->set_beta2(0.95);
  train->mutable_optimizer()->set_epsilon(1e-8);
  train->mutable_schedule()->set_name("cosine");
  return spec;
}

// GPT-2 124M on two ranks, `range` micro-batches of 2 sequences on each.
v1::JobSpec PinnedGpt2(benchmark::State& state) {
  v1::JobSpec spec = Gpt2Spec(4 * state.range(0));
  spec.mutable_layout()->set_micro_batch(2);
  return spec;
}

Budget TwoRanks() { return {.ranks = 2, .threads_per_rank = 2, .profile = CpuProfile(2)}; }

void BM_Prepare(benchmark::State& state) {
  const v1::JobSpec spec = PinnedGpt2(state);
  for (auto _ : state) benchmark::DoNotOptimize(Prepare(spec, TwoRanks()));
}
BENCHMARK(BM_Prepare)->Arg(8)->Arg(64)->Unit(benchmark::kMillisecond);

// The layout left open: four candidates are compiled, checked and simulated.
void BM_PrepareAuto(benchmark::State& state) {
  const v1::JobSpec spec = Gpt2Spec(32);
  for (auto _ : state) benchmark::DoNotOptimize(Prepare(spec, TwoRanks()));
}
BENCHMARK(BM_PrepareAuto)->Unit(benchmark::kMillisecond);

void BM_Check(benchmark::State& state) {
  const auto prepared = Prepare(PinnedGpt2(state), TwoRanks());
  for (auto _ : state) {
    if (!CheckPrograms(prepared->programs).ok()) state.SkipWithError("refused");
  }
  state.counters["instructions"] = prepared->plan.instructions();
}
BENCHMARK(BM_Check)->Arg(8)->Arg(64)->Unit(benchmark::kMillisecond);

void BM_Simulate(benchmark::State& state) {
  const auto prepared = Prepare(PinnedGpt2(state), TwoRanks());
  for (auto _ : state)
    benchmark::DoNotOptimize(Simulate(prepared->programs[0], "train", CpuProfile(2)));
  state.counters["instructions"] = prepared->plan.instructions();
}
BENCHMARK(BM_Simulate)->Arg(8)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace terrace

BENCHMARK_MAIN();
