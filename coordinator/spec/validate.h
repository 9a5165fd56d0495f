// Rules that span keys, and defaults that depend on other keys. Runs when every key alone is right.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "coordinator/spec/reader.h"
#include "proto/v1/job.pb.h"

namespace terrace {

void ValidateSpec(SpecReader& reader, v1::JobSpec* spec);

}  // namespace terrace
