// What proving costs: all checks of one program by its number of instructions, all stages of a
// pipeline with its deadlock run, the state of a large model. Run by hand.
//
// SPDX-License-Identifier: Apache-2.0
#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>
#include <vector>

#include "coordinator/compiler/compile.h"
#include "proto/check/joint.h"
#include "proto/check/program_check.h"

namespace terrace {
namespace {

v1::JobSpec Spec(int64_t sequence_length) {
  v1::JobSpec spec;
  spec.set_name("bench");
  spec.mutable_data()->set_sequence_length(sequence_length);
  spec.mutable_train()->set_steps(1);
  spec.mutable_train()->mutable_optimizer()->set_lr(1e-4);
  spec.mutable_train()->mutable_schedule()->set_name("cosine");
  return spec;
}

struct Shape {
  uint32_t data = 1, tensor = 1, pipeline = 1, zero = 0, micro_batches = 1;
};

// Llama of 8 billion parameters.
std::vector<v1::Program> Programs(const Shape& shape) {
  constexpr int64_t kSequence = 4096;
  const auto config = ParseModelConfig(
      R"({"model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "num_hidden_layers": 32,
          "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
          "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
          "hidden_act": "silu", "tie_word_embeddings": false})",
      kSequence);
  const Model model = BuildModel(*config);
  const v1::JobSpec spec = Spec(kSequence);
  v1::Layout layout;
  layout.set_data_parallel(shape.data);
  layout.set_tensor_parallel(shape.tensor);
  layout.set_sequence_parallel(shape.tensor > 1);
  layout.set_pipeline_parallel(shape.pipeline);
  layout.set_context_parallel(1);
  layout.set_zero_stage(shape.zero);
  layout.set_micro_batch(1);
  layout.set_micro_batches(shape.micro_batches);
  layout.set_bucket_bytes(int64_t{200} << 20);
  layout.set_precision("bf16");
  layout.set_recompute("none");
  layout.set_schedule("1f1b");
  layout.set_interleave(1);
  layout.set_context_type("ring");
  layout.set_threads_per_rank(2);
  auto programs = Compile({.spec = &spec, .model = &model, .layout = layout});
  return programs.ok() ? *std::move(programs) : std::vector<v1::Program>();
}

void CheckAll(benchmark::State& state, const Shape& shape) {
  const std::vector<v1::Program> programs = Programs(shape);
  double instructions = 0;
  for (const v1::Program& program : programs) {
    for (const v1::Sequence& sequence : program.sequences()) {
      instructions += sequence.instructions_size();
    }
  }
  for (auto _ : state) {
    const absl::Status status = CheckPrograms(programs);
    if (!status.ok()) state.SkipWithError(std::string(status.message()).c_str());
  }
  state.counters["instructions"] = instructions;
}
BENCHMARK_CAPTURE(CheckAll, one_program, Shape{.data = 2, .tensor = 2, .micro_batches = 44})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(CheckAll, zero3_of_512_ranks,
                  Shape{.data = 64, .tensor = 8, .zero = 3, .micro_batches = 42})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(CheckAll, stages_16_of_16384_ranks,
                  Shape{.data = 128, .tensor = 8, .pipeline = 16, .zero = 1, .micro_batches = 64})
    ->Unit(benchmark::kMillisecond);

// A forward and a backward pass of `computations` instructions a micro-batch and stage, 1f1b.
v1::Program PipelineStage(uint32_t stage, uint32_t stages, int micro_batches, int computations) {
  v1::Program program;
  program.set_stage(stage);
  program.set_stages(stages);
  program.set_ranks(stages);
  program.mutable_grid()->set_pipeline(stages);
  program.add_buffers()->set_name("x");
  for (const char* name : {"forward", "backward"}) {
    program.add_groups()->set_name(name);
    program.mutable_groups()->rbegin()->add_axes(v1::PIPELINE);
  }
  for (int stream = 0; stream < 5; ++stream) program.add_streams();
  v1::Sequence* train = program.add_sequences();
  train->set_name("train");
  const auto add = [&](int micro_batch, uint32_t stream) {
    v1::Instruction* instruction = train->add_instructions();
    instruction->set_id(train->instructions_size() - 1);
    instruction->set_stream(stream);
    instruction->set_micro_batch(micro_batch);
    instruction->add_operands()->add_shape(4);
    return instruction;
  };
  const auto transfer = [&](int micro_batch, uint32_t group, v1::TransferKind kind, int64_t peer) {
    if (peer < 0 || peer >= stages) return;
    v1::Instruction* instruction = add(micro_batch, 1 + 2 * group + (kind == v1::SEND ? 1 : 0));
    instruction->mutable_transfer()->set_kind(kind);
    instruction->mutable_transfer()->set_group(group);
    instruction->mutable_transfer()->set_peer_stage(static_cast<uint32_t>(peer));
    if (kind == v1::SEND) instruction->add_waits(instruction->id() - 1);
  };
  const auto pass = [&](int micro_batch, uint32_t group, int64_t from, int64_t to) {
    transfer(micro_batch, group, v1::RECEIVE, from);
    const bool received = from >= 0 && from < stages;
    for (int c = 0; c < computations; ++c) {
      v1::Instruction* compute = add(micro_batch, 0);
      compute->mutable_compute()->set_op("gelu");
      if (c == 0 && received) compute->add_waits(compute->id() - 1);
    }
    transfer(micro_batch, group, v1::SEND, to);
  };
  const int64_t before = int64_t{stage} - 1, after = int64_t{stage} + 1;
  int forward = 0;
  for (int backward = 0; backward < micro_batches; ++backward) {
    const int ahead = std::min<int>(micro_batches, backward + static_cast<int>(stages - stage));
    while (forward < ahead) pass(forward++, 0, before, after);
    pass(backward, 1, after, before);
  }
  return program;
}

void DeadlockRun(benchmark::State& state) {
  std::vector<v1::Program> stages;
  double instructions = 0;
  for (uint32_t s = 0; s < 64; ++s) {
    stages.push_back(PipelineStage(s, 64, 512, static_cast<int>(state.range(0))));
    instructions += stages.back().sequences(0).instructions_size();
  }
  for (auto _ : state) {
    const absl::Status status = check::CheckTermination(stages);
    if (!status.ok()) state.SkipWithError(std::string(status.message()).c_str());
  }
  state.counters["instructions"] = instructions;
}
BENCHMARK(DeadlockRun)->Arg(1)->Arg(4)->Arg(32)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace terrace

BENCHMARK_MAIN();
