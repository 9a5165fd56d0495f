// What planning costs: packing (real and made-up problems, with the certificate
// arena/bound - 1), lives and offsets of a large program, checking, simulating, and the whole of
// Prepare for GPT-2 124M with 8 micro-batches. Run by hand; results/pack-*.md keeps what was
// measured.
//
// SPDX-License-Identifier: Apache-2.0
#include <benchmark/benchmark.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "coordinator/compiler/pack/liveness.h"
#include "coordinator/compiler/pack/pack.h"
#include "coordinator/compiler/pack/place.h"
#include "coordinator/hardware/profiles.h"
#include "coordinator/model/presets.h"
#include "coordinator/prepare/prepare.h"
#include "coordinator/simulator/simulate.h"
#include "proto/check/program_check.h"
#include "tests/unit/coordinator/compiler/pack/data.h"
#include "tests/unit/coordinator/compiler/pack/programs.h"

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

// All training programs of tests/unit/coordinator/compiler/pack/programs.h; the worst certificate.
void BM_PackTrainingPrograms(benchmark::State& state) {
  std::vector<std::vector<PackBuffer>> programs;
  for (const ProgramShape& shape : TrainingProgramShapes()) {
    programs.push_back(MakeProgramLives(shape));
  }
  double worst = 0;
  for (auto _ : state) {
    for (const auto& buffers : programs) {
      const Packing packing = *Pack(buffers);
      worst = std::max(worst, static_cast<double>(packing.arena_bytes) / packing.lower_bound_bytes);
    }
  }
  state.counters["programs"] = static_cast<double>(programs.size());
  state.counters["over_bound_%"] = 100 * (worst - 1);
}
BENCHMARK(BM_PackTrainingPrograms)->Unit(benchmark::kMillisecond);

// The 16 stages of a 405B model in 1F1B with `range` micro-batches, one after the other.
void BM_PackSixteenStages(benchmark::State& state) {
  std::vector<std::vector<PackBuffer>> stages;
  size_t buffers = 0;
  for (int stage = 0; stage < 16; ++stage) {
    stages.push_back(MakeProgramLives(LargeStage(stage, static_cast<int>(state.range(0)))));
    buffers += stages.back().size();
  }
  double worst = 0;
  for (auto _ : state) {
    for (const auto& stage : stages) {
      const Packing packing = *Pack(stage);
      worst = std::max(worst, static_cast<double>(packing.arena_bytes) / packing.lower_bound_bytes);
    }
  }
  state.counters["buffers"] = static_cast<double>(buffers);
  state.counters["over_bound_%"] = 100 * (worst - 1);
}
BENCHMARK(BM_PackSixteenStages)->Arg(128)->Arg(256)->Arg(512)->Unit(benchmark::kMillisecond);

// One stage with varying lengths: 10^4 to 10^6 buffers.
void BM_PackStage(benchmark::State& state) {
  ProgramShape shape = LargeStage(7, static_cast<int>(state.range(0)));
  shape.rows_vary = true;
  PackAll(state, MakeProgramLives(shape));
}
BENCHMARK(BM_PackStage)->Arg(64)->Arg(512)->Arg(4096)->Unit(benchmark::kMillisecond);

// `range` instructions on 32 streams, most of them on the first, that hand work to and fro.
v1::Program ManyStreams(int instructions) {
  constexpr int kStreams = 32;
  std::mt19937 random(1);
  v1::Program program;
  program.add_arenas()->set_tier(v1::DEVICE);
  for (int s = 0; s < kStreams; ++s) program.add_streams();
  v1::Sequence* sequence = program.add_sequences();
  sequence->set_name("train");
  std::vector<int> last(kStreams, -1);
  for (int i = 0; i < instructions; ++i) {
    v1::Buffer* buffer = program.add_buffers();
    buffer->set_id(i);
    buffer->set_name("buffer " + std::to_string(i));
    buffer->set_bytes(256 << random() % 12);
    buffer->set_lifetime(v1::STEP);
    buffer->set_sequence("train");
    v1::Instruction* instruction = sequence->add_instructions();
    instruction->set_id(i);
    const int stream = random() % 10 < 7 ? 0 : 1 + static_cast<int>(random() % (kStreams - 1));
    const int other = stream == 0 ? 1 + static_cast<int>(random() % (kStreams - 1)) : 0;
    instruction->set_stream(stream);
    if (last[other] >= 0) instruction->add_waits(last[other]);
    last[stream] = i;
    for (int k = 0; k < 3; ++k) {
      v1::Operand* operand = instruction->add_operands();
      operand->set_access(v1::UPDATE);
      operand->set_buffer(std::max(0, i - static_cast<int>(random() % 40)));
    }
  }
  return program;
}

void BM_Liveness(benchmark::State& state) {
  const v1::Program program = ManyStreams(static_cast<int>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(Liveness(program, program.sequences(0)));
}
BENCHMARK(BM_Liveness)->Arg(10000)->Arg(100000)->Unit(benchmark::kMillisecond);

void BM_PlaceBuffers(benchmark::State& state) {
  v1::Program program = ManyStreams(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    if (!PlaceBuffers(&program).ok()) state.SkipWithError("refused");
  }
  state.counters["over_bound_%"] =
      100 *
      (static_cast<double>(program.arenas(0).bytes()) / program.arenas(0).lower_bound_bytes() - 1);
}
BENCHMARK(BM_PlaceBuffers)->Arg(10000)->Arg(100000)->Unit(benchmark::kMillisecond);

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
