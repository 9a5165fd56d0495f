// SPDX-License-Identifier: Apache-2.0
#include "coordinator/spec/keys.h"

namespace terrace {
namespace {

constexpr double kMaxBytes = 1e18;

const std::vector<SpecKey>& Table() {
  using enum KeyKind;
  static const std::vector<SpecKey> table = {
      {"name", kString, "", true, 1, 63, {}, "", "Name of the job: lower-case letters, digits, '-', '_', '.'"},

      {"model.config", kModelConfig, "", true, 0, 0, {}, "",
       "Preset name, path of a Hugging Face config.json, or its content as a mapping"},
      {"model.init", kPathOrWord, "random", false, 0, 0, {"random"}, "",
       "random, or safetensors to start from: a file, an index.json, or a folder"},
      {"model.attention", kChoice, "config", false, 0, 0, {"config", "full", "sliding_window"}, "",
       "Which positions a query sees: as config.json says, all before it, or config.json's sliding_window in every layer"},

      {"data.train", kPaths, "", true, 0, 0, {}, "", "Training files: .txt, .jsonl, .bin, Megatron .idx"},
      {"data.validation", kPaths, "", false, 0, 0, {}, "",
       "Validation files; without them the tail of the training tokens is held out"},
      {"data.tokenizer", kPathOrWord, "bytes", false, 0, 0, {"bytes"}, "",
       "bytes, a Hugging Face tokenizer.json, or a SentencePiece .model"},
      {"data.sequence_length", kInteger, "1024", false, 1, 1 << 20, {}, "", "Tokens of one training example"},
      {"data.validation_fraction", kReal, "0.05", false, 0, 0.5, {}, "",
       "Part of the training tokens held out when data.validation is empty"},
      {"data.cache", kPath, ".terrace/tokens", false, 0, 0, {}, "", "Folder of the token cache"},

      {"train.steps", kInteger, "", true, 1, 1e9, {}, "", "Optimizer steps"},
      {"train.global_batch", kInteger, "", true, 1, 1e7, {}, "", "Sequences of one step, over all ranks"},
      {"train.optimizer.name", kChoice, "adamw", false, 0, 0, {"adamw"}, "", "Optimizer"},
      {"train.optimizer.lr", kReal, "3e-4", false, 0, 10, {}, "", "Peak learning rate"},
      {"train.optimizer.betas", kBetas, "[0.9, 0.95]", false, 0, 1, {}, "train.optimizer.beta1",
       "Decay of the first and second moment"},
      {"train.optimizer.epsilon", kReal, "1e-8", false, 1e-30, 1, {}, "", "Added to the root of the second moment"},
      {"train.optimizer.weight_decay", kReal, "0.1", false, 0, 10, {}, "",
       "Decoupled decay of tensors with two or more dimensions"},
      {"train.schedule.name", kChoice, "cosine", false, 0, 0, {"constant", "linear", "cosine"}, "",
       "Course of the learning rate after the warm-up"},
      {"train.schedule.warmup_steps", kInteger, "0", false, 0, 1e9, {}, "", "Steps of linear warm-up"},
      {"train.schedule.min_lr", kReal, "0", false, 0, 10, {}, "", "Learning rate at the last step"},
      {"train.clip_grad_norm", kReal, "1.0", false, 0, 1e9, {}, "", "Largest global gradient norm; 0: no clipping"},
      {"train.precision", kChoice, "bf16", false, 0, 0, {"fp32", "bf16"}, "",
       "bf16: activations and products in bf16, weights, gradients and optimizer state in fp32"},
      {"train.seed", kInteger, "1234", false, 0, 9007199254740991.0, {}, "", "Seed of weights and sampling"},
      {"train.eval_every_steps", kInteger, "0", false, 0, 1e9, {}, "",
       "Steps between evaluations; 0: only after the last step"},
      {"train.eval_batches", kInteger, "16", false, 1, 1e6, {}, "", "Batches of global_batch sequences in one evaluation"},
      {"train.log_every_steps", kInteger, "1", false, 1, 1e9, {}, "", "Steps between reported steps"},

      {"layout.dp", kInteger, "", false, 1, 65536, {}, "", "Data-parallel ranks"},
      {"layout.tp", kInteger, "", false, 1, 1, {}, "", "Tensor-parallel ranks (1 in this version)"},
      {"layout.pp", kInteger, "", false, 1, 1, {}, "", "Pipeline stages (1 in this version)"},
      {"layout.cp", kInteger, "", false, 1, 1, {}, "", "Context-parallel ranks (1 in this version)"},
      {"layout.zero", kInteger, "-1", false, 0, 0, {}, "", "ZeRO stage (0 in this version)"},
      {"layout.micro_batch", kInteger, "", false, 1, 1e6, {}, "", "Sequences that a rank computes at a time"},
      {"layout.bucket_size", kBytes, "", false, 1024, kMaxBytes, {}, "layout.bucket_bytes",
       "Gradients that are reduced together, in bytes"},
      {"layout.recompute", kChoice, "", false, 0, 0, {"none"}, "", "Activations computed again in the backward pass"},

      {"resources.nodes", kNodes, "1", false, 1, 16384, {}, "resources.nodes_min", "Worker nodes: N or MIN:MAX"},
      {"resources.devices_per_node", kInteger, "1", false, 1, 64, {}, "", "Ranks on each node"},
      {"resources.device", kChoice, "auto", false, 0, 0, {"auto", "cpu"}, "", "Backend that computes"},
      {"resources.device_memory", kBytes, "", false, 1 << 20, kMaxBytes, {}, "",
       "Memory that a rank may use; without it what the worker offers"},
      {"resources.threads_per_device", kInteger, "0", false, 0, 1024, {}, "",
       "CPU threads of a rank; 0: the node's cores divided by its ranks"},

      {"checkpoint.directory", kPath, "", false, 0, 0, {}, "",
       "Folder of the checkpoints; without it checkpoints/<name> beside the spec"},
      {"checkpoint.every_steps", kInteger, "0", false, 0, 1e9, {}, "", "Steps between checkpoints; 0: only at the end"},
      {"checkpoint.keep", kInteger, "3", false, 0, 1e6, {}, "", "Newest checkpoints kept; 0: all"},
      {"checkpoint.resume", kChoice, "auto", false, 0, 0, {"auto", "never"}, "",
       "auto: go on from the newest complete checkpoint in the directory"},

      {"max_restarts", kInteger, "3", false, 0, 1000, {}, "", "Restarts after failures without progress between them"},
      {"priority", kInteger, "0", false, -1000, 1000, {}, "", "Higher starts first"},
  };
  return table;
}

}  // namespace

const std::vector<SpecKey>& SpecKeys() { return Table(); }

}  // namespace terrace
