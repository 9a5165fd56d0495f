// What the fake NCCL needs of the fake CUDA. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

struct CUstream_st;

namespace terrace::fake_nccl {

// Runs `work` on the stream, after what is there.
void Enqueue(CUstream_st* stream, std::function<void()> work);
int CurrentDevice();
void CountCuda(int* streams, int* events, int* allocations);

}  // namespace terrace::fake_nccl
