// Which tensors of a model are low-rank adapters, and of which linear layer: LoRA, Hu et al. 2021
// (arXiv 2106.09685). Beside the weight "q_proj.weight" stand "q_proj.lora_A.weight" [rank, in] and
// "q_proj.lora_B.weight" [out, rank], as PEFT names and stores them.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "coordinator/model/config.h"
#include "coordinator/model/model.h"

namespace terrace {

// Among the targets it stands for all linear layers of the transformer's layers.
inline constexpr std::string_view kAllLinear = "all-linear";

// Whether the linear layer of this name ("model.layers.0.self_attn.q_proj") has an adapter.
bool HasAdapter(const LoraConfig& lora, std::string_view module);

bool IsLoraA(TensorRole role);
bool IsLoraB(TensorRole role);
inline bool IsAdapter(TensorRole role) { return IsLoraA(role) || IsLoraB(role); }
// The role of the weight that an adapter stands beside; any other role is returned as it is.
TensorRole AdaptedRole(TensorRole role);
// REQUIRES: `weight` is of a linear layer (IsMatrixProduct), and no adapter.
TensorRole LoraA(TensorRole weight);
TensorRole LoraB(TensorRole weight);

// How many parameters all adapters have together.
int64_t AdapterParameters(const Model& model);

// What is wrong with config.lora for this model, one sentence each: a target that names no linear
// layer, a rank above the sides of a matrix.
std::vector<std::string> LoraProblems(const ModelConfig& config);

}  // namespace terrace
