// A plan as the table that `terrace plan` prints: layout, model, memory by tier and class, time,
// the binding constraint, alternatives. Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "proto/v1/plan.pb.h"

namespace terrace {

// "host", or "device 50 % + nvme 50 %"; empty when there is no part at all.
std::string TierSharesText(const v1::TierShares& shares);

std::string PlanText(const v1::Plan& plan);

}  // namespace terrace
