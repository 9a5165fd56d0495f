// Gives every buffer of a program its offset: persistent buffers first, then the STEP buffers of
// each sequence packed by their lives into the space behind them; sequences reuse each other's
// space. Sets Arena.bytes and lower_bound_bytes. Pure, deterministic, thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "coordinator/compiler/pack.h"
#include "proto/v1/program.pb.h"

namespace terrace {

absl::Status PlaceBuffers(v1::Program* program, PackEffort effort = PackEffort::kFull);

}  // namespace terrace
