// Memory of the calling thread's device and pinned memory of the host, as arenas are made of.
//
// What is allocated here is freed here; copies block until they are done and wait for no queue.
// Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernel.h"

namespace terrace::kernels::cuda {

// `data` is 256-byte aligned, its content anything. `exhausted`: the error is that the device has
// no more.
Status AllocateDevice(int64_t bytes, std::byte** data, bool* exhausted);
void FreeDevice(std::byte* data);

// Host memory that the device copies from and to without help.
Status AllocatePinned(int64_t bytes, std::byte** data);
void FreePinned(std::byte* data);
// Makes it of memory that is there.
Status Pin(std::byte* data, int64_t bytes);
void Unpin(std::byte* data);

// Between device memory and any other.
Status CopyNow(void* to, const void* from, int64_t bytes);
Status ZeroNow(std::byte* data, int64_t bytes);  // device memory

// Of the device, all processes together.
Status FreeBytes(int64_t* free_bytes, int64_t* total_bytes);

}  // namespace terrace::kernels::cuda
