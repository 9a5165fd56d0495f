// The memory that training, adapters and inference take, by the formulas that people compute by
// hand: per device, by class, with the formula that gave each number. What a Terrace job reserves
// is not estimated but compiled: `terrace plan`.
//
//   training   mixed-precision Adam, 2 + 4 + 12 bytes a parameter, with bf16 gradients 2 + 2 + 12,
//              and what each ZeRO stage and offload leaves of it (Rajbhandari et al. 2020, arXiv
//              1910.02054; Ren et al. 2021, arXiv 2101.06840; Rajbhandari et al. 2021, arXiv
//              2104.07857); in fp32 4 + 4 + 8
//   activations  what a layer keeps for its backward pass with flash attention, as in Korthikanti
//              et al. 2022, arXiv 2205.05198, without the masks of dropout, which is not used
//   LoRA       frozen weights, and r (in + out) trained parameters a matrix, which have what
//              training has (Hu et al. 2021, arXiv 2106.09685)
//   QLoRA      the matrices of layers in NF4 with double quantisation, 4.127 bits a parameter
//              (Dettmers et al. 2023, arXiv 2305.14314)
//   inference  weights, and keys and values of every token (grouped-query attention counts its kv
//              heads, sliding windows their length)
//
// Parameter counts are those of the model's tensors, exactly. Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/model/model.h"
#include "kernels/format.h"
#include "kernels/optimizer_rule.h"

namespace terrace {

struct EstimateInput {
  const Model* model = nullptr;
  int64_t sequence_length = 0;
  int64_t batch = 1;  // sequences on a device at a time
  int64_t devices = 1;
  bool bf16 = true;
  const kernels::OptimizerRow* optimizer = &kernels::kOptimizerRows[0];          // of training
  const kernels::FormatRow* moments = &kernels::RowOf(kernels::Format::kF32);    // of training
  const kernels::FormatRow* gradients = &kernels::RowOf(kernels::Format::kF32);  // of training
  int64_t lora_rank = 16;
};

struct EstimatedBytes {
  std::string what;     // "weights", "gradients", "optimizer", "activations", "KV cache", ...
  std::string formula;  // "2 N / 8"
  int64_t bytes = 0;
};
struct EstimateCase {
  std::string name;  // "ZeRO 2, optimizer on host"
  std::vector<EstimatedBytes> device, host, nvme;

  static int64_t Total(const std::vector<EstimatedBytes>& parts);
};
struct EstimateSection {
  std::string name;  // "training", "optimizers", "activations", "lora", "qlora", "inference"
  std::string note;
  std::vector<EstimateCase> cases;
};

std::vector<EstimateSection> EstimateMemory(const EstimateInput& input);

// Trained parameters of adapters of rank `rank` on all matrices of the layers.
int64_t LoraParameters(const Model& model, int64_t rank);

// Of one token of one sequence, keys and values of all layers; `length` is that of the sequence,
// and the result an average over its tokens where layers have windows.
double KvBytesPerToken(const Model& model, int64_t length, int64_t element_bytes);

}  // namespace terrace
