// Gives every buffer of a program its offset: persistent buffers first, then the STEP buffers of
// each sequence packed by their lives into the space behind them; sequences reuse each other's
// space. Sets Arena.bytes and lower_bound_bytes, and where the device's is packed with pages at
// second addresses (pack_pages.h) page_bytes and aliases. Pure, deterministic, thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "coordinator/compiler/pack.h"
#include "proto/v1/program.pb.h"

namespace terrace {

struct PlaceOptions {
  PackEffort effort = PackEffort::kFull;
  // On the device then pages, where that leaves more than 1 % over the bound or more than the
  // program's device limit.
  bool pages = false;
  // It has the offsets that packing with this effort gave: they are kept, and only pages are tried.
  bool packed = false;
  bool only_to_fit = false;  // whatever fits the program's device limit does
};

// FAILED_PRECONDITION when a buffer of a loop would hold values of two iterations at a time.
absl::Status PlaceBuffers(v1::Program* program, const PlaceOptions& options = {});

// Takes the arenas, and the offsets in them, of which `other`, the same program placed otherwise,
// needs less.
void TakeSmallerArenas(const v1::Program& other, v1::Program* program);

}  // namespace terrace
