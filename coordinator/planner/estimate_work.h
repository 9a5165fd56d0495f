// What the closed form of memory counts beside states and kept activations: the scratch of matrix
// products and of the loss, the gradients that are there while one layer is differentiated.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "coordinator/planner/estimate_stages.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

// Of a micro-batch on one rank.
int64_t TokensOf(const v1::Layout& layout, int64_t sequence);

// While the loss and the gradient of the head are computed.
int64_t LossBytes(const EstimateModel& model, const v1::Layout& layout);
// Scratch of the update of the largest matrix by a rule of whole matrices; 0 with other rules.
int64_t UpdateWorkBytes(const EstimateModel& model, const v1::Layout& layout);

// While one layer is differentiated, beside what was kept or recomputed of it.
int64_t LayerWorkBytes(const EstimateModel& model, const v1::Layout& layout);

}  // namespace terrace
