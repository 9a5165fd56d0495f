// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/megatron/groups.h"

namespace terrace {
namespace {

constexpr std::string_view kTokenizer =
    "set data.tokenizer to a tokenizer.json; .idx data are tokens already";
constexpr std::string_view kDecoder = "the model is a decoder that predicts the next token";
constexpr std::string_view kOneFormat = "safetensors by tensor, for every layout";
constexpr std::string_view kNccl = "NCCL chooses by the network";
constexpr std::string_view kGraphs = "steps are captured as graphs where they can be";
constexpr std::string_view kStreams = "communication has streams of its own";
constexpr std::string_view kMetrics = "it is in /metrics, or nowhere";

}  // namespace

const std::vector<MegatronFlag>& MegatronGroups() {
  using enum Fate;
  static const auto* groups = new std::vector<MegatronFlag>{
      {"inprocess-", kAutomatic, "", "a job starts again from its checkpoint"},
      {"adlr-", kAutomatic, "", "a job starts again from its checkpoint"},
      {"one-logger-", kAutomatic, "", kMetrics},
      {"app-tag-", kAutomatic, "", kMetrics},
      {"log-", kAutomatic, "", kMetrics},
      {"no-log-", kAutomatic, "", kMetrics},
      {"tensorboard-", kAutomatic, "", kMetrics},
      {"wandb-", kAbsent, "", "Prometheus reads /metrics"},
      {"straggler-", kAutomatic, "", "ranks that lag are named by themselves"},
      {"profile", kAutomatic, "", "every instruction is in the trace"},
      {"error-injection-", kAbsent, "", "no faults are injected"},
      {"muon-", kAbsent, "",
       "train.optimizer.name: muon has momentum, ns_steps and adjust_lr in train.optimizer, which "
       "are torch.optim.Muon's"},
      {"grpo-", kAbsent, "", kDecoder},
      {"langrl-", kAbsent, "", kDecoder},
      {"rl-", kAbsent, "", kDecoder},
      {"bert-", kAbsent, "", kDecoder},
      {"biencoder-", kAbsent, "", kDecoder},
      {"ict-", kAbsent, "", kDecoder},
      {"retriever-", kAbsent, "", kDecoder},
      {"retro-", kAbsent, "", kDecoder},
      {"relative-attention-", kAbsent, "", "positions are learned or rotary"},
      {"moe-", kAbsent, "", "there are no experts"},
      {"kitchen-", kAbsent, "", "products are of train.precision, without recipes"},
      {"fp8-", kAbsent, "", "scales are tensorwise: just in time, one a tensor"},
      {"fp4-", kAbsent, "", "products are fp8 at the narrowest: train.precision"},
      {"tp-comm-", kAutomatic, "", kStreams},
      {"disable-tp-comm-", kAutomatic, "", kStreams},
      {"sharp-", kAutomatic, "", kNccl},
      {"nccl-", kAutomatic, "", kNccl},
      {"cuda-graph-", kAutomatic, "", kGraphs},
      {"inference-", kAutomatic, "", "belongs to inference"},
      {"ckpt-", kAutomatic, "", kOneFormat},
      {"dist-ckpt-", kAutomatic, "", kOneFormat},
      {"distrib-optim-", kAutomatic, "", kOneFormat},
      {"non-persistent-", kAutomatic, "", "checkpoints are written while training goes on"},
      {"replication", kAutomatic, "", "checkpoints lie where all workers see them"},
      {"tiktoken-", kAbsent, "", kTokenizer},
  };
  return *groups;
}

const std::vector<MegatronOldName>& MegatronOldNames() {
  static const auto* names = new std::vector<MegatronOldName>{
      {"batch-size", "--micro-batch-size"},
      {"model-parallel-size", "--tensor-model-parallel-size"},
      {"warmup", "--lr-warmup-fraction"},
      {"checkpoint-activations", "--recompute-activations"},
      {"yaml-cfg", "the flags that the file stands for, which is not read"},
  };
  return *names;
}

}  // namespace terrace
