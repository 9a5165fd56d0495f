// In which precision each product of a layout computes: train.precision, its default for all and
// its rules for single layers and modules, resolved for a model.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "proto/v1/job.pb.h"
#include "proto/v1/plan.pb.h"

namespace terrace {

// Writes train.precision into the layout of a model with so many layers. Rules that do not fit the
// model are PrecisionProblems().
void SetPrecisions(const v1::TrainSpec& train, int64_t layers, v1::Layout* layout);

// What a model with so many layers makes of the rules, whatever the layout: layers that it has not,
// and products of which two rules of the same rank say different things. One line a problem.
std::vector<std::string> PrecisionProblems(const v1::TrainSpec& train, int64_t layers);

// Of the products of a layer's attention and MLP, and of the LM head.
std::string_view AttentionPrecision(const v1::Layout& layout, int64_t layer);
std::string_view MlpPrecision(const v1::Layout& layout, int64_t layer);
std::string_view HeadPrecision(const v1::Layout& layout);

// The precisions of layers' products, each with its share of them, as if all layers were alike; the
// most first.
struct PrecisionShare {
  std::string_view precision;
  double share = 0;
};
std::vector<PrecisionShare> AttentionShares(const v1::Layout& layout);
std::vector<PrecisionShare> MlpShares(const v1::Layout& layout);

// Whether any product computes in it.
bool ComputesIn(const v1::Layout& layout, std::string_view precision);

// What share of the layers' weights layout.parameter_format is for: those whose products round to
// it. The others stay f32 (compiler/parameters.h).
double RoundedShare(const v1::Layout& layout);

}  // namespace terrace
