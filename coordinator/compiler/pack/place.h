// Gives every buffer of a program its offset: persistent buffers first, then the STEP buffers of
// each sequence packed by their lives into the space behind them; sequences reuse each other's
// space. Sets Arena.bytes and lower_bound_bytes, and where the device's is packed with pages at
// second addresses (pages.h) page_bytes and aliases. Pure, deterministic, thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "proto/v1/program.pb.h"

namespace terrace {

// When the device's arena is packed with pages.
enum class PagePolicy {
  kNever,
  kToFit,       // where it does not fit the program's device limit in one piece each
  kWhereLoose,  // there, and where orders leave more than 1 % over the bound
};

// FAILED_PRECONDITION when a buffer of a loop would hold values of two iterations at a time.
absl::Status PlaceBuffers(v1::Program* program, PagePolicy pages = PagePolicy::kNever);

}  // namespace terrace
