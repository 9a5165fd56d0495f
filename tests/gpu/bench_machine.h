// Where the kernel benchmarks run: a GPU, or the CPU for rehearsals. Owns the memory of the
// operands of one case at a time. Used on one thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/kernel.h"
#include "tests/gpu/bench_case.h"

namespace terrace::kernels::bench {

class Machine {
 public:
  virtual ~Machine() = default;
  virtual std::string name() const = 0;
  virtual bool is_gpu() const = 0;
  // False where there is no kernel for the op.
  virtual bool Has(Op op) const = 0;
  // Attention on sm_90a's own instructions, for what is timed from now on.
  virtual bool has_wgmma() const { return false; }
  virtual void UseWgmma(bool) {}
  // Memory for the operands, filled with small numbers, and for the workspace.
  virtual Status Prepare(const Case& bench_case) = 0;
  // Seconds of one call, the mean of `calls` of them on the device's own clock.
  virtual Status Time(int calls, double* seconds) = 0;
  // The same for the best of the library's algorithms for the product that was prepared. Zero: the
  // machine has no library to compare with.
  virtual Status TimeLibrary(int calls, double* seconds) = 0;
  // Bytes read and written a second by a copy of this size.
  virtual Status CopyRate(int64_t bytes, double* rate) = 0;
};

// An error in one line where there is no GPU to run on.
Status OpenGpu(std::unique_ptr<Machine>* machine);
// An error in builds without the CPU's kernels.
Status OpenCpu(std::unique_ptr<Machine>* machine);

}  // namespace terrace::kernels::bench
