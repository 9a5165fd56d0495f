// Marks what runs on both sides. In files that nvcc does not compile it says nothing.
//
// Why: the arithmetic of kernels is tested on machines without a GPU.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifdef __CUDACC__
#define TERRACE_HOST_DEVICE __host__ __device__
#else
#define TERRACE_HOST_DEVICE
#endif
