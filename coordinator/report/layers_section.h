// The part of a plan's page about memory by layer: a picture a tier, what is hot and what would
// lower it; of a job that runs also what a rank holds now.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "coordinator/prepare/prepare.h"
#include "proto/v1/job.pb.h"

namespace terrace {

// `now`: the report of a rank; one without an instruction stands for none. Of many stages only the
// first and the last are shown, and it says so.
std::string LayersSection(const Prepared& prepared, const v1::RankMemory& now);

}  // namespace terrace
