// How far losses and gradients of a layout may be from one rank's and from exact ones: the bound of
// docs/layouts.md, and what is granted where a gradient is a small difference of large sums.
//
// The bound is one of a rounded gradient against the exact one. Two that are rounded in different
// orders may be further apart: see IsJudgedByExact. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "coordinator/model/model.h"

namespace terrace {

// ||a - b|| / ||b||, Frobenius.
double RelativeError(const std::vector<float>& a, const std::vector<float>& b);
double RelativeError(const std::vector<float>& a, const std::vector<double>& b);

// How much larger the relative error of the tensor's gradient may be than that of most.
double Cancellation(const Tensor& tensor);

// True where one rank's gradient and a layout's, in f32, may each be within the bound of the exact
// one and further from each other: queries and keys.
bool IsJudgedByExact(const Tensor& tensor);

// Of the relative error of the tensor's gradient; of the relative difference of a loss.
double GradientBound(const Model& model, const Tensor& tensor, const std::string& precision);
double LossBound(const std::string& precision);

}  // namespace terrace
