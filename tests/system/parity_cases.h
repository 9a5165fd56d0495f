// Which layouts parity_test trains, by what its environment asks for:
//
//   TERRACE_ALL_LAYOUTS=1         all that 8 ranks allow; without it a fixed sample
//   TERRACE_LAYOUTS="dp1 tp2+sp"  those whose description has this part
//   TERRACE_LAYOUTS_SHARD=k/n     an n-th of them, one after the other; layouts that differ in
//                                 schedule, recompute or precision alone are in one shard
//
//   TERRACE_LAYOUTS_PAGES=1       with every step buffer in pages at second addresses
//                                 (parity_test.cc)
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tests/unit/coordinator/compiler/layout_matrix.h"

namespace terrace {

struct ParityCase {
  LayoutCase layout;
  size_t index = 0;  // in the matrix
};

struct ParityCases {
  std::vector<ParityCase> cases;
  std::string shard;  // "3/24"
  // Every so many-th of the matrix is trained on threads over Gloo as well; the rest only in turns.
  size_t on_threads_every = 1;
};

ParityCases CasesFromEnvironment();

// What layouts have in common that must be equal bit for bit: all but recompute, the order in which
// a pipeline interleaves its passes, and whether weights are sharded as gradients are.
std::string BitwiseFamily(const LayoutCase& c);

}  // namespace terrace
