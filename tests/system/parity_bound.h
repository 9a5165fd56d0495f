// How far a layout's losses and gradients may be from one rank's: the bound of docs/layouts.md, and
// what is granted where a gradient is a small difference of large sums. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "coordinator/model/model.h"

namespace terrace {

// ||a - b|| / ||b||, Frobenius.
double RelativeError(const std::vector<float>& a, const std::vector<float>& b);

// How much larger the relative error of the tensor's gradient may be than that of most.
double Cancellation(const Tensor& tensor);

// Of the relative error of the tensor's gradient; of the relative difference of a loss.
double GradientBound(const Model& model, const Tensor& tensor, const std::string& precision);
double LossBound(const std::string& precision);

}  // namespace terrace
