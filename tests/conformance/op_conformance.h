// The judgements of op_judge.h as GoogleTest expectations.
//
// A backend is one function, so a new one (CUDA) runs the same suite by adding one small test file;
// see cpu_conformance_test.cc. Not thread-safe: GoogleTest expectations inside.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>

#include "tests/conformance/op_case.h"
#include "tests/conformance/op_judge.h"

namespace terrace::kernels::conformance {

// The operands' shapes, for GoogleTest's messages.
void PrintTo(const OpCase& op_case, std::ostream* out);

void ExpectMatchesReference(const Backend& backend, const OpCase& op_case);
void ExpectSameForAnyThreads(const Backend& backend, const OpCase& op_case);
void ExpectMatchesFiniteDifferences(const Backend& backend, const OpCase& op_case);

}  // namespace terrace::kernels::conformance
