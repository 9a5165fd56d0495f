// The kernel benchmarks where the CPU's kernels are not built.
//
// SPDX-License-Identifier: Apache-2.0
#include "tests/gpu/bench_machine.h"

namespace terrace::kernels::bench {

Status OpenCpu(std::unique_ptr<Machine>*) {
  return {"cpu: this program was built without the CPU's kernels"};
}

}  // namespace terrace::kernels::bench
