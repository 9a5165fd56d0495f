// Work of several queues, captured once and launched as one: a CUDA graph.
//
// Between Begin and End what is asked of a queue is not executed but written down, and so is what
// is asked of queues that wait for a mark which was set since: by then they have joined. End takes
// all of it, so every joined queue must have been waited for, directly or not. Only what is in
// device and pinned memory may be named, and nobody may wait for a queue on the host meanwhile.
//
// Thread rule: Begin, what follows and End come from one thread. Launches: one thread at a time.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "kernels/cuda/queue.h"

struct CUgraphExec_st;

namespace terrace::kernels::cuda {

class Graph {
 public:
  static Status Begin(Queue* queue);
  // Also after a failure: the queues are as before. What the device needs for the graph is there
  // when this returns.
  static Status End(Queue* queue, std::unique_ptr<Graph>* graph);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // On the queue, after what is there; what is asked of the queue then comes after all of it.
  Status Launch(Queue* queue) const;

 private:
  Graph() = default;

  CUgraphExec_st* executable_ = nullptr;
};

}  // namespace terrace::kernels::cuda
