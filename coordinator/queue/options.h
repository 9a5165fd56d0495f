// What an operator sets about the queue (terrace-coordinator serve --help).
//
// Plain values. Thread-compatible.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace terrace {

struct QueueOptions {
  // Of jobs whose spec has no time_limit; 0: none.
  int64_t time_limit_default_seconds = 0;
  // A job that asks for more is refused, and one that asks for nothing gets this; 0: any is taken.
  int64_t time_limit_max_seconds = 0;
};

}  // namespace terrace
