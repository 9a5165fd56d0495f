// Tiny jobs of every family, for tests of the compiler and its passes.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "coordinator/compiler/compile.h"

namespace terrace {

inline const std::vector<std::string>& Families() {
  static const auto* families =
      new std::vector<std::string>{"gpt2", "llama", "mistral", "qwen2", "qwen3"};
  return *families;
}

struct TinySizes {
  int64_t vocabulary = 61;  // a prime: no number of ranks divides it
  int64_t hidden = 32;
  int64_t layers = 2;
  int64_t intermediate = 48;  // outside gpt2, where it is 4 x hidden
  int64_t sequence = 12;
};

// Four heads; two key-value heads outside gpt2.
inline std::string TinyConfig(std::string_view family, const TinySizes& sizes = {}) {
  std::string config =
      absl::StrCat(R"({"model_type": ")", Absl(family), R"(", "vocab_size": )", sizes.vocabulary);
  if (family == "gpt2") {
    return absl::StrCat(config, R"(, "n_embd": )", sizes.hidden, R"(, "n_layer": )", sizes.layers,
                        R"(, "n_head": 4, "n_positions": )", sizes.sequence + 8,
                        R"(, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"})");
  }
  absl::StrAppend(&config, R"(, "hidden_size": )", sizes.hidden, R"(, "num_hidden_layers": )",
                  sizes.layers, R"(, "num_attention_heads": 4)");
  if (family == "opt") {
    return absl::StrCat(config, R"(, "ffn_dim": )", sizes.intermediate,
                        R"(, "max_position_embeddings": )", sizes.sequence + 8,
                        R"(, "dropout": 0})");
  }
  absl::StrAppend(&config, R"(, "num_key_value_heads": 2)", R"(, "head_dim": )", sizes.hidden / 4,
                  R"(, "intermediate_size": )", sizes.intermediate,
                  R"(, "max_position_embeddings": )", 52 + sizes.sequence,
                  R"(, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu")");
  if (family == "mistral") config += R"(, "sliding_window": 5)";
  return config + R"(, "tie_word_embeddings": )" + (family == "qwen3" ? "true" : "false") + "}";
}

inline Model TinyModel(std::string_view family, const TinySizes& sizes = {}) {
  const auto config = ParseModelConfig(TinyConfig(family, sizes), sizes.sequence);
  EXPECT_TRUE(config.ok()) << config.status();
  return BuildModel(*config);
}

struct TinyJob {
  std::string family = "gpt2";
  std::string precision = "fp32";
  uint32_t data_parallel = 1;
  uint32_t micro_batches = 1;
  int64_t bucket_bytes = 8000;
  uint32_t tensor_parallel = 1;
  bool sequence_parallel = false;
  uint32_t pipeline_parallel = 1;
  std::string schedule = "1f1b";
  uint32_t context_parallel = 1;
  std::string context_type = "ring";
  uint32_t zero_stage = 0;
  uint32_t shard_size = 0;
  int64_t persistent_parameters = 0;
  std::string recompute = "none";
  uint32_t recompute_every = 0;
  TinySizes sizes = {};
  v1::Tier parameter = v1::DEVICE, gradient = v1::DEVICE, optimizer = v1::DEVICE,
           activation = v1::DEVICE;
  int64_t chunk_bytes = 4096;
  int64_t tile_bytes = 0;
  std::vector<int64_t> lengths = {};  // data.buckets
  bool straight = false;              // as in CompileInput
  uint32_t interleave = 0;
  std::string parameter_format = {};
  double clip_grad_norm = 1;  // 0: updates at once
  std::string moments_format = {};
  std::string gradient_format = {};
  std::string activation_format = {};
  std::string gather_format = {};
  std::string reduce_format = {};
  uint32_t reduce_block = 0;
  std::string residual_format = {};
};

inline void PutOn(v1::Tier tier, v1::TierShares* shares) {
  shares->set_device(tier == v1::DEVICE);
  shares->set_host(tier == v1::HOST);
  shares->set_nvme(tier == v1::NVME);
}

inline std::string Describe(const TinyJob& job) {
  return absl::StrCat(job.family, " ", job.precision, " dp", job.data_parallel, " tp",
                      job.tensor_parallel, job.sequence_parallel ? "+sp" : "", " pp",
                      job.pipeline_parallel, " ", job.schedule, " cp", job.context_parallel, " ",
                      job.context_type, " zero", job.zero_stage, "/", job.shard_size, " ",
                      job.recompute, " micro-batches ", job.micro_batches, " offload ",
                      job.parameter, job.gradient, job.optimizer, job.activation);
}

// All families and both precisions, alone and in parallel, with and without accumulation.
inline std::vector<TinyJob> TinyJobs() {
  std::vector<TinyJob> jobs;
  for (const std::string& family : Families()) {
    for (const char* precision : {"fp32", "bf16"}) {
      jobs.push_back({family, precision, 1, 1});
      jobs.push_back({family, precision, 1, 3});
      jobs.push_back({family, precision, 2, 1});
      jobs.push_back({family, precision, 4, 2});
    }
  }
  return jobs;
}

inline v1::JobSpec TinySpec(int64_t sequence = 12) {
  v1::JobSpec spec;
  spec.set_name("tiny");
  spec.mutable_data()->set_sequence_length(sequence);
  v1::TrainSpec* train = spec.mutable_train();
  train->set_steps(10);
  train->set_clip_grad_norm(1.0);
  train->mutable_optimizer()->set_lr(1e-3);
  train->mutable_optimizer()->set_beta1(0.9);
  train->mutable_optimizer()->set_beta2(0.95);
  train->mutable_optimizer()->set_epsilon(1e-8);
  train->mutable_optimizer()->set_weight_decay(0.1);
  train->mutable_schedule()->set_name("cosine");
  train->mutable_loss_scale()->set_initial(65536);
  train->mutable_loss_scale()->set_window(1000);
  train->mutable_loss_scale()->set_hysteresis(2);
  train->mutable_loss_scale()->set_min(1);
  return spec;
}

inline v1::Layout TinyLayout(const TinyJob& job) {
  v1::Layout layout;
  layout.set_data_parallel(job.data_parallel);
  layout.set_micro_batch(2);
  layout.set_micro_batches(job.micro_batches);
  layout.set_bucket_bytes(job.bucket_bytes);
  layout.set_precision(job.precision);
  layout.set_recompute(job.recompute);
  layout.set_recompute_every(job.recompute_every);
  layout.set_threads_per_rank(2);
  layout.set_tensor_parallel(job.tensor_parallel);
  layout.set_sequence_parallel(job.sequence_parallel);
  layout.set_pipeline_parallel(job.pipeline_parallel);
  layout.set_schedule(job.schedule);
  layout.set_interleave(job.interleave);
  layout.set_context_parallel(job.context_parallel);
  layout.set_context_type(job.context_type);
  layout.set_zero_stage(job.zero_stage);
  layout.set_shard_size(job.shard_size);
  layout.set_persistent_parameters(job.persistent_parameters);
  layout.set_chunk_bytes(job.chunk_bytes);
  layout.set_tile_bytes(job.tile_bytes);
  layout.set_parameter_format(job.parameter_format);
  layout.set_gradient_format(job.gradient_format);
  layout.set_moments_format(job.moments_format);
  layout.set_activation_format(job.activation_format);
  layout.set_gather_format(job.gather_format);
  layout.set_reduce_format(job.reduce_format);
  layout.set_reduce_block(job.reduce_block);
  layout.set_residual_format(job.residual_format);
  PutOn(job.parameter, layout.mutable_offload()->mutable_parameter());
  PutOn(job.gradient, layout.mutable_offload()->mutable_gradient());
  PutOn(job.optimizer, layout.mutable_offload()->mutable_optimizer());
  PutOn(job.activation, layout.mutable_offload()->mutable_activation());
  return layout;
}

// One program a stage; none when it does not compile.
inline std::vector<v1::Program> CompileStages(const TinyJob& job) {
  v1::JobSpec spec = TinySpec(job.sizes.sequence);
  spec.mutable_train()->set_clip_grad_norm(job.clip_grad_norm);
  for (const int64_t length : job.lengths) spec.mutable_data()->add_buckets(length);
  const Model model = TinyModel(job.family, job.sizes);
  auto programs = Compile(
      {.spec = &spec, .model = &model, .layout = TinyLayout(job), .straight = job.straight});
  EXPECT_TRUE(programs.ok()) << Describe(job) << ": " << programs.status();
  return programs.ok() ? *std::move(programs) : std::vector<v1::Program>();
}

// Of the first stage.
inline v1::Program CompileTiny(const TinyJob& job) {
  const std::vector<v1::Program> programs = CompileStages(job);
  return programs.empty() ? v1::Program() : programs[0];
}

inline const v1::Sequence& SequenceOf(const v1::Program& program, const std::string& name) {
  for (const v1::Sequence& sequence : program.sequences()) {
    if (sequence.name() == name) return sequence;
  }
  ADD_FAILURE() << "no sequence " << name;
  return program.sequences(0);
}

}  // namespace terrace
