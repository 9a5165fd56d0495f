// Calls of the driver itself, looked up by name: programs link only the runtime. Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace terrace::kernels::cuda {

// Where the driver keeps the call; null where it has none.
void* DriverCall(const char* name);

}  // namespace terrace::kernels::cuda
