// What compiling a large job costs: seconds to compile (packing included) and to check, the memory
// of the process at its peak, the size of the programs. Prints a table; results/compile-*.md keeps
// what was measured. With arguments only the cases whose names contain one of them.
//
// SPDX-License-Identifier: Apache-2.0
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/compiler/compile.h"
#include "coordinator/model/presets.h"
#include "proto/check/program_check.h"
#include "proto/program/grid.h"

namespace terrace {
namespace {

// Which is no preset.
constexpr char kGpt175b[] =
    R"({"model_type":"gpt2","vocab_size":51200,"n_positions":2048,"n_embd":12288,"n_layer":96,)"
    R"("n_head":96,"layer_norm_epsilon":1e-5,"activation_function":"gelu_new"})";

struct Case {
  std::string name;
  std::string_view preset;  // or "gpt-175b"
  int64_t sequence = 0;
  int64_t global_batch = 0;
  v1::Layout layout;  // degrees and passes; the rest is set below
};

v1::Layout Degrees(uint32_t dp, uint32_t tp, uint32_t pp, uint32_t cp, uint32_t zero) {
  v1::Layout layout;
  layout.set_data_parallel(dp);
  layout.set_tensor_parallel(tp);
  layout.set_sequence_parallel(tp > 1);
  layout.set_pipeline_parallel(pp);
  layout.set_context_parallel(cp);
  layout.set_zero_stage(zero);
  layout.set_recompute("none");
  return layout;
}

std::vector<Case> Cases() {
  std::vector<Case> cases = {
      {.name = "gpt2, dp 8",
       .preset = "gpt2",
       .sequence = 1024,
       .global_batch = 512,
       .layout = Degrees(8, 1, 1, 1, 0)},
      {.name = "llama-3.1-8b, dp 64 zero 3 block",
       .preset = "llama-3.1-8b",
       .sequence = 8192,
       .global_batch = 512,
       .layout = Degrees(64, 1, 1, 1, 3)},
      {.name = "llama-3.1-70b, tp 8 pp 8 dp 32 zero 1 zb-h1",
       .preset = "llama-3.1-70b",
       .sequence = 8192,
       .global_batch = 1024,
       .layout = Degrees(32, 8, 8, 1, 1)},
      {.name = "llama-3.1-405b, tp 8 pp 16 dp 8 cp 16 zero 1, sequence 131072",
       .preset = "llama-3.1-405b",
       .sequence = 131072,
       .global_batch = 128,
       .layout = Degrees(8, 8, 16, 16, 1)},
      {.name = "llama-3.1-405b, tp 8 pp 16 x 2 dp 128 zero 1",
       .preset = "llama-3.1-405b",
       .sequence = 8192,
       .global_batch = 2048,
       .layout = Degrees(128, 8, 16, 1, 1)},
      {.name = "llama-3.1-8b, dp 8 zero 2, nearly as many micro-batches as a step may have",
       .preset = "llama-3.1-8b",
       .sequence = 2048,
       .global_batch = 7168,
       .layout = Degrees(8, 1, 1, 1, 2)},
      {.name = "gpt-175b, tp 8 pp 16 1f1b, 1536 micro-batches",
       .preset = "gpt-175b",
       .sequence = 2048,
       .global_batch = 1536,
       .layout = Degrees(1, 8, 16, 1, 0)},
      {.name = "llama-2-7b, dp 8 zero 1, 32 micro-batches",
       .preset = "llama-2-7b",
       .sequence = 4096,
       .global_batch = 256,
       .layout = Degrees(8, 1, 1, 1, 1)},
      {.name = "llama-2-7b, dp 8 zero 1, 512 micro-batches",
       .preset = "llama-2-7b",
       .sequence = 4096,
       .global_batch = 4096,
       .layout = Degrees(8, 1, 1, 1, 1)},
      {.name = "llama-2-7b, dp 8 zero 1, 100000 micro-batches",
       .preset = "llama-2-7b",
       .sequence = 4096,
       .global_batch = 800000,
       .layout = Degrees(8, 1, 1, 1, 1)},
      {.name = "llama-2-7b, dp 8 zero 3, 512 micro-batches",
       .preset = "llama-2-7b",
       .sequence = 4096,
       .global_batch = 4096,
       .layout = Degrees(8, 1, 1, 1, 3)},
      {.name = "llama-2-7b, dp 2 pp 4 zb-h1 zero 1, 96 micro-batches",
       .preset = "llama-2-7b",
       .sequence = 4096,
       .global_batch = 192,
       .layout = Degrees(2, 1, 4, 1, 1)},
      {.name = "llama-2-7b, dp 2 pp 4 zbv zero 1, 96 micro-batches",
       .preset = "llama-2-7b",
       .sequence = 4096,
       .global_batch = 192,
       .layout = Degrees(2, 1, 4, 1, 1)},
      {.name = "llama-2-7b, dp 2 pp 4 x 2 zero 1, 96 micro-batches",
       .preset = "llama-2-7b",
       .sequence = 4096,
       .global_batch = 192,
       .layout = Degrees(2, 1, 4, 1, 1)},
  };
  cases[1].layout.set_recompute("block");
  for (Case& c : cases) {
    const auto named = [&c](const char* words) { return c.name.find(words) != std::string::npos; };
    for (const char* schedule : {"zb-h1", "zbv"}) {
      if (named(schedule)) c.layout.set_schedule(schedule);
    }
    if (!named("x 2")) continue;
    c.layout.set_schedule("interleaved");
    c.layout.set_interleave(2);
  }
  return cases;
}

v1::JobSpec SpecOf(const Case& c) {
  v1::JobSpec spec;
  spec.set_name(c.name);
  spec.mutable_data()->set_sequence_length(c.sequence);
  v1::TrainSpec* train = spec.mutable_train();
  train->set_steps(1000);
  train->set_global_batch(c.global_batch);
  train->set_clip_grad_norm(1);
  train->mutable_optimizer()->set_lr(1e-4);
  train->mutable_optimizer()->set_beta1(0.9);
  train->mutable_optimizer()->set_beta2(0.95);
  train->mutable_optimizer()->set_epsilon(1e-8);
  train->mutable_optimizer()->set_weight_decay(0.1);
  train->mutable_schedule()->set_name("cosine");
  return spec;
}

v1::Layout LayoutOf(const Case& c) {
  v1::Layout layout = c.layout;
  layout.set_micro_batch(1);
  layout.set_micro_batches(static_cast<uint32_t>(c.global_batch / layout.data_parallel()));
  layout.set_bucket_bytes(int64_t{25} << 20);
  layout.set_precision("bf16");
  layout.set_threads_per_rank(8);
  return layout;
}

double Seconds(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double PeakGib() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / (1 << 20);
}

// False when the case does not compile or the checker refuses it.
bool Measure(const Case& c) {
  const Preset* preset = FindPreset(c.preset);
  const auto config =
      ParseModelConfig(preset == nullptr ? kGpt175b : preset->config_json, c.sequence);
  if (!config.ok()) {
    std::printf("%s: %s\n", c.name.c_str(), std::string(config.status().message()).c_str());
    return false;
  }
  const Model model = BuildModel(*config);
  const v1::JobSpec spec = SpecOf(c);
  const double cpu_before = CpuSeconds();
  auto start = std::chrono::steady_clock::now();
  const auto programs = Compile({.spec = &spec, .model = &model, .layout = LayoutOf(c)});
  const double compile = Seconds(start);
  const double compile_cpu = CpuSeconds() - cpu_before;
  if (!programs.ok()) {
    std::printf("%s: %s\n", c.name.c_str(), std::string(programs.status().message()).c_str());
    return false;
  }
  start = std::chrono::steady_clock::now();
  const double check_cpu_before = CpuSeconds();
  const absl::Status checked = CheckPrograms(*programs);
  const double check = Seconds(start);
  const double check_cpu = CpuSeconds() - check_cpu_before;

  size_t instructions = 0, bytes = 0;
  int buffers = 0;
  int64_t arena = 0;
  double over = 0;  // the worst packing over its lower bound
  for (const v1::Program& program : *programs) {
    for (const v1::Sequence& sequence : program.sequences()) {
      instructions += sequence.instructions_size();
    }
    bytes = std::max(bytes, program.ByteSizeLong());
    buffers = std::max(buffers, program.buffers_size());
    const v1::Arena& a = program.arenas(0);
    arena = std::max(arena, a.bytes());
    over = std::max(over, static_cast<double>(a.bytes()) / a.lower_bound_bytes() - 1);
  }
  std::printf(
      "| %s | %lu | %zu | %.2f (%.2f) | %.2f (%.2f) | %.2f | %zu | %d | %.1f | %.1f | %.2f |\n",
      c.name.c_str(), static_cast<unsigned long>(RanksOf(programs->at(0).grid())), programs->size(),
      compile, compile_cpu, check, check_cpu, PeakGib(), instructions, buffers,
      static_cast<double>(bytes) / 1e6, static_cast<double>(arena) / (1 << 30), 100 * over);
  std::fflush(stdout);
  if (!checked.ok()) std::printf("  refused: %s\n", std::string(checked.message()).c_str());
  return checked.ok();
}

}  // namespace
}  // namespace terrace

int main(int argc, char** argv) {
  std::printf(
      "| job | ranks | programs | compile s (CPU) | check s (CPU) | peak GiB | instructions | "
      "buffers | largest program MB | arena GiB | over bound %% "
      "|\n|---|---|---|---|---|---|---|---|---|---|"
      "---|\n");
  bool all = true;
  for (const terrace::Case& c : terrace::Cases()) {
    const bool chosen = argc < 2 || std::any_of(argv + 1, argv + argc, [&](const char* part) {
                          return c.name.find(part) != std::string::npos;
                        });
    if (chosen) all = terrace::Measure(c) && all;
  }
  return all ? 0 : 1;
}
