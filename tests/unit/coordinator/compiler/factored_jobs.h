// What train.optimizer says of the rules that keep means of rows and columns.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "proto/v1/job.pb.h"

namespace terrace {

// The defaults of the spec; `beta1`: of adafactor, 0: no first moment.
inline void SetFactored(std::string_view rule, double beta1, v1::OptimizerSpec* optimizer) {
  const bool came = rule == "came";
  optimizer->set_name(std::string(rule));
  optimizer->set_epsilon(1e-30);
  optimizer->set_clip_threshold(1);
  optimizer->set_beta1(came ? 0.9 : beta1);
  optimizer->set_beta2(came ? 0.999 : 0);
  optimizer->set_beta3(came ? 0.9999 : 0);
  optimizer->set_error_epsilon(came ? 1e-16 : 0);
  optimizer->set_beta2_decay(came ? 0 : -0.8);
  optimizer->set_scale_parameter(!came);
  optimizer->set_least_scale(came ? 0 : 1e-3);
}

}  // namespace terrace
