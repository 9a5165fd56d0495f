// One row of an evaluation: what a plan says of memory and time, beside that of a job without
// techniques.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coordinator/prepare/prepare.h"
#include "proto/v1/evaluation.pb.h"

namespace terrace {

// Fills what follows from the plan. The row's name and settings are its owner's.
void FillRow(const Prepared& prepared, v1::EvaluatedRow* row);

// Ratios to `none`, of which a refused or impossible one leaves them open.
void CompareRow(const v1::EvaluatedRow& none, v1::EvaluatedRow* row);

}  // namespace terrace
