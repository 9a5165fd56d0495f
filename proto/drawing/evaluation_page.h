// An evaluation as a page: what fits and at which price, the largest sizes, each technique beside
// none in memory and time, what holds the memory. One file without scripts or links, for a screen
// and for paper.
//
// Pure and thread-safe: the same evaluation gives the same bytes.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "proto/v1/evaluation.pb.h"

namespace terrace {

std::string EvaluationPage(const v1::Evaluation& evaluation);

}  // namespace terrace
