// How the optimizer treats each tensor of a model: at which part of the learning rate it is
// updated, and with how much weight decay (train.optimizer.groups and layer_decay).
//
// A rate that falls from layer to layer is that of ELECTRA (Clark et al. 2020, arXiv 2003.10555)
// and BEiT (Bao et al. 2021, arXiv 2106.08254): with L layers the final norm and the LM head have
// the whole rate, layer i (from 0) has layer_decay^(L - i) of it, tables of embeddings
// layer_decay^(L + 1).
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "coordinator/model/model.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

struct TensorUpdate {
  double lr_scale = 1;  // times the schedule's learning rate
  double weight_decay = 0;
  bool operator==(const TensorUpdate&) const = default;
};

// Of several groups that a tensor is in the last counts.
TensorUpdate UpdateOf(const v1::OptimizerSpec& optimizer, const ModelConfig& config,
                      const Tensor& tensor);

// What is wrong with the groups for this model, one sentence each: a pattern that matches no
// tensor; tensors that one product computes with and that are to be updated differently.
std::vector<std::string> ParameterGroupProblems(const v1::OptimizerSpec& optimizer,
                                                const Model& model);

// Each group with the tensors that it counts for, and those of no group; empty when all tensors
// are updated alike.
std::vector<v1::ParameterGroupLine> ParameterGroupLines(const v1::OptimizerSpec& optimizer,
                                                        const Model& model);

}  // namespace terrace
