// What the kernel benchmarks find out: the rate of each case, what it is compared with, and whether
// its bound held.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "tests/gpu/bench_case.h"
#include "tests/gpu/bench_machine.h"

namespace terrace::kernels::bench {

struct Row {
  std::string name;
  double seconds = 0;
  double rate = 0;         // FLOP/s or bytes/s
  double compared = 0;     // the rate that it is compared with; 0: none
  bool bandwidth = false;  // rates are bytes/s
  double bound = 0;
  bool judged = false, passed = true;
};

// Of a clock that only goes forward.
double Now();

// `copy_rate`: what memory-bound cases are compared with. An error names the case.
Status MeasureCase(const Case& bench_case, double copy_rate, Machine* machine, Row* row);

// Attention once more on sm_90a's own instructions: a row more for each of its cases. Of the two
// ways the faster is judged. REQUIRES: machine->has_wgmma(). An error when it is `deadline`, by
// Now.
Status MeasureWgmma(const std::vector<Case>& cases, double deadline, Machine* machine,
                    std::vector<Row>* rows);

}  // namespace terrace::kernels::bench
