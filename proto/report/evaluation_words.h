// What an evaluation comes to, in sentences, and how its rows are called: for the table on a
// terminal and the page alike.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "proto/v1/evaluation.pb.h"

namespace terrace {

// "recompute selective", "none".
std::string RowName(const v1::EvaluatedRow& row);
// "+12 %", "-3.1 %", "0 %"; empty for a ratio of 0, which is not known.
std::string ChangeText(double ratio);
// Of a size: "11", "at least 8", "none".
std::string SizeText(const v1::LargestSize& size);

// Whether the job fits, with what, at which price, and what is the largest that does.
std::vector<std::string> Findings(const v1::Evaluation& evaluation);

// Techniques that cannot be or change nothing, those with one reason or of one group together.
struct NotPossible {
  std::vector<std::string> names;
  std::string reason;
};
std::vector<NotPossible> ImpossibleRows(const v1::Evaluation& evaluation);

// Bytes of a class of the rank that needs most of a tier, at its peak, as `terrace plan` lists
// them.
struct HeldBytes {
  v1::Tier tier;
  v1::BufferClass buffer_class;  // UNSPECIFIED: gaps
  int64_t bytes = 0;
};
std::vector<HeldBytes> HeldOf(const v1::EvaluatedRow& row);

// The evaluation's rows that were planned: none, then as planned, then each technique.
std::vector<const v1::EvaluatedRow*> PlannedRows(const v1::Evaluation& evaluation);

}  // namespace terrace
