// Staging memory of a CUDA device: pinned host memory and copies on a CUDA stream.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "worker/comm/staged_communicator.h"

struct CUstream_st;

namespace terrace {

// Buffers whose memory is pinned for the device that is current now. Copies of collectives run on
// `stream`, behind what is there; those of messages on streams that the buffers own. Borrows the
// stream.
MakeStagingBuffer CudaStaging(CUstream_st* stream);

}  // namespace terrace
