// Tiny jobs of every family, for tests of the compiler and its passes.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "coordinator/compiler/compile.h"

namespace terrace {

inline const std::vector<std::string>& Families() {
  static const auto* families =
      new std::vector<std::string>{"gpt2", "llama", "mistral", "qwen2", "qwen3"};
  return *families;
}

inline std::string TinyConfig(std::string_view family) {
  if (family == "gpt2") {
    return R"({"model_type": "gpt2", "vocab_size": 61, "n_embd": 32, "n_layer": 2, "n_head": 4,
               "n_positions": 20, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"})";
  }
  std::string config = R"({"vocab_size": 61, "hidden_size": 32, "num_hidden_layers": 2,
      "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48,
      "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
      "hidden_act": "silu", )";
  if (family == "mistral") config += R"("sliding_window": 5, )";
  config +=
      family == "qwen3" ? R"("tie_word_embeddings": true, )" : R"("tie_word_embeddings": false, )";
  return config + R"("model_type": ")" + std::string(family) + "\"}";
}

inline Model TinyModel(std::string_view family, int64_t sequence = 12) {
  const auto config = ParseModelConfig(TinyConfig(family), sequence);
  EXPECT_TRUE(config.ok()) << config.status();
  return BuildModel(*config);
}

struct TinyJob {
  std::string family = "gpt2";
  std::string precision = "fp32";
  uint32_t data_parallel = 1;
  uint32_t micro_batches = 1;
  int64_t bucket_bytes = 8000;
};

inline std::string Describe(const TinyJob& job) {
  return job.family + " " + job.precision + " dp " + std::to_string(job.data_parallel) +
         " micro-batches " + std::to_string(job.micro_batches);
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

inline v1::JobSpec TinySpec() {
  v1::JobSpec spec;
  spec.set_name("tiny");
  spec.mutable_data()->set_sequence_length(12);
  v1::TrainSpec* train = spec.mutable_train();
  train->set_steps(10);
  train->set_clip_grad_norm(1.0);
  train->mutable_optimizer()->set_lr(1e-3);
  train->mutable_optimizer()->set_beta1(0.9);
  train->mutable_optimizer()->set_beta2(0.95);
  train->mutable_optimizer()->set_epsilon(1e-8);
  train->mutable_optimizer()->set_weight_decay(0.1);
  train->mutable_schedule()->set_name("cosine");
  return spec;
}

inline v1::Layout TinyLayout(const TinyJob& job) {
  v1::Layout layout;
  layout.set_data_parallel(job.data_parallel);
  layout.set_micro_batch(2);
  layout.set_micro_batches(job.micro_batches);
  layout.set_bucket_bytes(job.bucket_bytes);
  layout.set_precision(job.precision);
  layout.set_recompute("none");
  layout.set_threads_per_rank(2);
  return layout;
}

inline v1::Program CompileTiny(const TinyJob& job) {
  const v1::JobSpec spec = TinySpec();
  const Model model = TinyModel(job.family);
  const auto programs = Compile({.spec = &spec, .model = &model, .layout = TinyLayout(job)});
  EXPECT_TRUE(programs.ok()) << Describe(job) << ": " << programs.status();
  return programs.ok() ? programs->at(0) : v1::Program();
}

inline const v1::Sequence& SequenceOf(const v1::Program& program, const std::string& name) {
  for (const v1::Sequence& sequence : program.sequences()) {
    if (sequence.name() == name) return sequence;
  }
  ADD_FAILURE() << "no sequence " << name;
  return program.sequences(0);
}

}  // namespace terrace
