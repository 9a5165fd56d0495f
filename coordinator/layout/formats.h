// The formats of a layout: how weights, gradients, moments and activations rest and travel.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/model/config.h"
#include "kernels/format.h"
#include "kernels/optimizer_rule.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

// What products of this precision round matrices in f32 to, "bf16" or "f16"; "f32" where they
// compute with what they are given. Those in fp8 are scaled by the largest element, which rounding
// might change.
std::string_view ProductFormat(std::string_view precision);
// formats.reduce, which layout.communication_dtype stands for where it is not given; empty: chosen.
std::string ReduceFormat(const v1::JobSpec& spec);
// Whether passes read matrices that were rounded before, from masters in f32 that only the
// optimizer sees (compiler/parameters.h).
bool RoundsWeights(const v1::Layout& layout);

// The rule that updates weights: layout.optimizer, AdamW where that is empty or unknown.
const kernels::OptimizerRow& OptimizerOf(const v1::Layout& layout);
// What the spec's optimizer is called there: sgd is momentum or nesterov where it has momentum.
std::string_view OptimizerName(const v1::OptimizerSpec& optimizer);
// How the moments of matrices rest: layout.moments_format, f32 where that is empty or unknown, or
// the optimizer keeps none.
const kernels::FormatRow& MomentFormat(const v1::Layout& layout);
// How many elements of a moment share a scale where it is in blocks: the format's block, or as
// many, a power of two, as lie together wherever ranks and tiles cut matrices. Fewer than
// kernels::kLeastBlock cannot be compiled.
int64_t MomentBlock(const v1::Layout& layout, const ModelConfig& config);

// How activations wait for the backward pass: layout.activation_format in blocks of
// kernels::kActivationBlock elements, or fewer where rows are no whole blocks; null where they stay
// as they were computed.
const kernels::FormatRow* ActivationFormat(const v1::Layout& layout);
// How gradients of matrices travel when ranks with ZeRO sum them: layout.reduce_format where that
// is in blocks, null where numbers are sent.
const kernels::FormatRow* ReduceCodes(const v1::Layout& layout);
// How what a block of ranks has summed travels to the other blocks (layout.reduce_block). Sums are
// a fraction of the gradients, and rounding them to 4 bits would double the error for little.
const kernels::FormatRow* CodesOfSums(const v1::Layout& layout);
// The type in which a rank keeps what the codes of its gradients were not worth
// (layout.residual_format), for the next codes to make good for it; none: it is lost.
std::optional<kernels::DType> ResidualType(const v1::Layout& layout);
// Whether so many ranks that differ in their data are one of several blocks of those that share a
// state, so that codes of gradients may be exchanged in two levels (layout.reduce_block).
bool IsReduceBlock(const v1::Layout& layout, int64_t ranks);
// How matrices travel when they are gathered for a use, in the same way: layout.gather_format.
const kernels::FormatRow* GatherFormat(const v1::Layout& layout);

// How matrices of layers that are not trained rest: layout.frozen_format in blocks; null where they
// rest as passes read them.
const kernels::FormatRow* FrozenFormat(const v1::Layout& layout);
// How many of their elements share a scale: the format's block, or as many, a power of two, as lie
// together in a row wherever ranks cut matrices. Fewer than kernels::kLeastBlock cannot be
// compiled. 0 without such a format.
int64_t FrozenBlock(const v1::Layout& layout, const ModelConfig& config);
// Bytes of one such element, its part of the scale counted. REQUIRES: there is such a format.
double FrozenBytes(const v1::Layout& layout, const ModelConfig& config);

// The part of CheckLayout() that is about formats: one line a problem. REQUIRES: the layout is
// complete.
std::vector<std::string> FormatProblems(const v1::Layout& layout, const ModelConfig& config);

}  // namespace terrace
