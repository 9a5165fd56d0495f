// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/op_conformance.h"

#include <gtest/gtest.h>

#include <ostream>

namespace terrace::kernels::conformance {
namespace {

void Expect(const Judgement& judgement) {
  for (const std::string& complaint : judgement.complaints) ADD_FAILURE() << complaint;
}

}  // namespace

void PrintTo(const OpCase& op_case, std::ostream* out) {
  for (size_t i = 0; i < op_case.operands.size(); ++i) {
    *out << (i > 0 ? ", " : "") << OperandName(op_case.op, static_cast<int>(i)) << ' '
         << op_case.operands[i].ToString();
  }
}

void ExpectMatchesReference(const Backend& backend, const OpCase& op_case) {
  Expect(JudgeAgainstReference(backend, op_case));
}

void ExpectSameForAnyThreads(const Backend& backend, const OpCase& op_case) {
  Expect(JudgeThreads(backend, op_case));
}

void ExpectMatchesFiniteDifferences(const Backend& backend, const OpCase& op_case) {
  Expect(JudgeFiniteDifferences(backend, op_case));
}

}  // namespace terrace::kernels::conformance
