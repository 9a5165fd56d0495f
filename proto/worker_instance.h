// The metadata of a worker's stream that tells one process of the worker from the next: a worker
// that dials again is the same, one that was started again is not.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace terrace {

inline constexpr char kWorkerInstanceKey[] = "terrace-worker-instance";

}  // namespace terrace
