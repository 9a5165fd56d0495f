// The pictures of an evaluation's page: each technique as two bars, memory and time; and what holds
// the device's memory without techniques and as planned.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "proto/drawing/svg.h"
#include "proto/v1/evaluation.pb.h"

namespace terrace {

Picture TechniquesChart(const v1::Evaluation& evaluation);
Picture HeldChart(const v1::Evaluation& evaluation);

}  // namespace terrace
