// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/graph.h"

#include <cuda_runtime_api.h>

#include "kernels/cuda/check.h"

namespace terrace::kernels::cuda {

// Other threads of the rank go on as they like (a checkpoint copies, a pool allocates); this one
// may only ask what can be captured.
Status Graph::Begin(Queue* queue) {
  return Check(cudaStreamBeginCapture(queue->stream(), cudaStreamCaptureModeThreadLocal),
               "cudaStreamBeginCapture");
}

Status Graph::End(Queue* queue, std::unique_ptr<Graph>* graph) {
  cudaGraph_t captured = nullptr;
  Status status = Check(cudaStreamEndCapture(queue->stream(), &captured), "cudaStreamEndCapture");
  std::unique_ptr<Graph> made(new Graph());
  if (status.ok())
    status = Check(cudaGraphInstantiate(&made->executable_, captured, 0), "cudaGraphInstantiate");
  if (captured != nullptr) cudaGraphDestroy(captured);
  if (status.ok()) {
    status = Check(cudaGraphUpload(made->executable_, queue->stream()), "cudaGraphUpload");
  }
  if (status.ok()) status = queue->Drain();
  if (status.ok()) {
    *graph = std::move(made);
  } else {
    cudaGetLastError();  // or the next call that asks finds this one's error
  }
  return status;
}

Graph::~Graph() {
  if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
}

Status Graph::Launch(Queue* queue) const {
  return Check(cudaGraphLaunch(executable_, queue->stream()), "cudaGraphLaunch");
}

}  // namespace terrace::kernels::cuda
