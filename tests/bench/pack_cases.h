// The training programs that pack_survey packs: a Llama of 16 layers, GPT-2 124M, Llama-3.1 8B and
// 70B, dp 8, pp 1 to 8, all schedules, ZeRO 0 to 3 and policies of recompute; and the packing
// problem of a compiled one.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/compiler/pack/liveness.h"
#include "coordinator/compiler/pack/pack.h"
#include "coordinator/layout/rules.h"
#include "coordinator/model/presets.h"
#include "proto/v1/program.pb.h"

namespace terrace {

struct SurveyModel {
  std::string name;
  std::string config_json;
  int64_t sequence = 0;
  uint32_t tensor_parallel = 1;
};

inline constexpr char kLlama16[] =
    R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 1024, "num_hidden_layers": 16,
        "num_attention_heads": 16, "num_key_value_heads": 16, "intermediate_size": 2816,
        "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": false})";

inline std::vector<SurveyModel> Models() {
  const auto preset = [](std::string_view name) {
    return std::string(FindPreset(name)->config_json);
  };
  return {{"llama16", kLlama16, 1024},
          {"gpt2", preset("gpt2"), 1024},
          {"llama-3.1-8b", preset("llama-3.1-8b"), 8192},
          {"llama-3.1-70b", preset("llama-3.1-70b"), 8192, 8}};
}

struct Batch {
  uint32_t micro_batch = 1, micro_batches = 8;
};

inline v1::Layout LayoutOf(const SurveyModel& model, uint32_t stages, const std::string& schedule,
                           uint32_t zero, const std::string& recompute, Batch batch) {
  v1::Layout layout;
  layout.set_data_parallel(8);
  layout.set_tensor_parallel(model.tensor_parallel);
  layout.set_sequence_parallel(model.tensor_parallel > 1);
  layout.set_pipeline_parallel(stages);
  layout.set_schedule(schedule);
  layout.set_zero_stage(zero);
  layout.set_recompute(recompute);
  layout.set_micro_batch(batch.micro_batch);
  layout.set_micro_batches(batch.micro_batches);
  layout.set_bucket_bytes(int64_t{25} << 20);
  layout.set_precision("bf16");
  layout.set_threads_per_rank(4);
  return layout;
}

struct Case {
  std::string name;
  size_t model = 0;
  v1::Layout layout;
};

inline v1::JobSpec SpecOf(const SurveyModel& model) {
  v1::JobSpec spec;
  spec.set_name(model.name);
  spec.mutable_data()->set_sequence_length(model.sequence);
  v1::TrainSpec* train = spec.mutable_train();
  train->set_steps(10);
  train->set_clip_grad_norm(1);
  train->mutable_optimizer()->set_lr(1e-4);
  train->mutable_optimizer()->set_beta1(0.9);
  train->mutable_optimizer()->set_beta2(0.95);
  train->mutable_optimizer()->set_epsilon(1e-8);
  train->mutable_schedule()->set_name("cosine");
  return spec;
}

inline Model ModelOf(const SurveyModel& model) {
  return BuildModel(*ParseModelConfig(model.config_json, model.sequence));
}

// All layouts of one model that its dimensions allow.
inline void AddCases(const SurveyModel& survey_model, size_t index, std::vector<Case>* cases) {
  const Model model = ModelOf(survey_model);
  const v1::JobSpec spec = SpecOf(survey_model);
  for (const uint32_t stages : {1, 2, 4, 8}) {
    for (const char* schedule : {"1f1b", "gpipe", "interleaved", "zb-h1", "zbv"}) {
      for (const uint32_t zero : {0, 1, 2, 3}) {
        for (const char* recompute : {"none", "selective", "block", "sqrt", "full"}) {
          for (const Batch batch : {Batch{1, 8}, Batch{2, 8}, Batch{1, 16}}) {
            const v1::Layout layout =
                LayoutOf(survey_model, stages, schedule, zero, recompute, batch);
            if (!CheckLayout(layout, model, spec).ok()) continue;
            cases->push_back(
                {absl::StrCat(survey_model.name, " pp ", stages, " ", schedule, " zero ", zero, " ",
                              recompute, " ", batch.micro_batch, "x", batch.micro_batches),
                 index, layout});
          }
        }
      }
    }
  }
}

// What the step buffers of "train" on the device need, and what lies there all the time.
struct DeviceLives {
  std::vector<PackBuffer> buffers;
  int64_t persistent_bytes = 0;
};

inline DeviceLives DeviceLivesOf(const v1::Program& program) {
  DeviceLives result;
  const auto train =
      std::find_if(program.sequences().begin(), program.sequences().end(),
                   [](const v1::Sequence& sequence) { return sequence.name() == "train"; });
  const std::vector<Life> lives = Liveness(program, *train);
  for (int i = 0; i < program.buffers_size(); ++i) {
    const v1::Buffer& buffer = program.buffers(i);
    if (buffer.arena() != 0) continue;
    if (buffer.lifetime() == v1::PERSISTENT) {
      const int64_t aligned = (buffer.bytes() + kPackAlignment - 1) / kPackAlignment;
      result.persistent_bytes += aligned * kPackAlignment;
    } else if (lives[i].begin < lives[i].end) {
      result.buffers.push_back({.name = buffer.name(),
                                .bytes = buffer.bytes(),
                                .begin = lives[i].begin,
                                .end = lives[i].end});
    }
  }
  return result;
}

// With what lies there all the time as a buffer of its own: the problem of the whole arena.
inline std::vector<PackBuffer> WholeArena(DeviceLives lives) {
  if (lives.persistent_bytes == 0 || lives.buffers.empty()) return lives.buffers;
  PackBuffer whole = {.name = "persistent", .bytes = lives.persistent_bytes};
  whole.begin = lives.buffers.front().begin;
  for (const PackBuffer& buffer : lives.buffers) {
    whole.begin = std::min(whole.begin, buffer.begin);
    whole.end = std::max(whole.end, buffer.end);
  }
  lives.buffers.push_back(whole);
  return lives.buffers;
}

}  // namespace terrace
