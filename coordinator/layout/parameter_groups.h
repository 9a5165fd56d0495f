// How the optimizer treats each tensor of a model: by which rule it is updated, at which part of
// the learning rate and with how much weight decay, or that it is frozen, which is not trained at
// all (train.optimizer.groups and layer_decay).
//
// A rule of whole matrices (kernels/optimizer_rule.h) updates the matrices of layers; norms,
// biases, tables and the LM head, where it is not meant to be used, are updated by AdamW.
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
#include "kernels/optimizer_rule.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

struct TensorUpdate {
  double lr_scale = 1;  // times the schedule's learning rate
  double weight_decay = 0;
  bool frozen = false;  // not trained; then lr_scale is 1, weight_decay 0 and the rule AdamW
  kernels::OptimizerRule rule = kernels::OptimizerRule::kAdamw;
  bool operator==(const TensorUpdate&) const = default;
};

// Of several groups that a tensor is in the last counts.
TensorUpdate UpdateOf(const v1::OptimizerSpec& optimizer, const ModelConfig& config,
                      const Tensor& tensor);

// True for a matrix of a layer, which a rule of whole matrices can update.
bool IsLayerMatrix(const Tensor& tensor);

// What is wrong with the groups for this model, one sentence each: a pattern that matches no
// tensor; a rule that cannot update what it matches; tensors that one product computes with and
// that are to be updated differently; a model of which nothing is trained.
std::vector<std::string> ParameterGroupProblems(const v1::OptimizerSpec& optimizer,
                                                const Model& model);

// Of all tensors.
int64_t FrozenParameters(const v1::OptimizerSpec& optimizer, const Model& model);

// Layers below it have no backward pass: the first layer that trains something; -1 where the
// embedding does, the number of layers where nothing but what follows them does.
int64_t FirstTrainedLayer(const v1::OptimizerSpec& optimizer, const Model& model);

// FlopsPerToken without the gradients of frozen weights, and without the backward pass of the
// layers below the first that trains something.
double TrainingFlopsPerToken(const v1::OptimizerSpec& optimizer, const Model& model,
                             int64_t sequence_length);

// The same, and with train.preference the forward pass of the reference.
double StepFlopsPerToken(const v1::TrainSpec& train, const Model& model, int64_t sequence_length);

// Each group with the tensors that it counts for, and those of no group; empty when all tensors
// are updated alike.
std::vector<v1::ParameterGroupLine> ParameterGroupLines(const v1::OptimizerSpec& optimizer,
                                                        const Model& model);

}  // namespace terrace
