// Which of the layouts that were tried is chosen, and how they are shown beside it.
//
// Kind by kind (planner.h): the plainer one is left only for one that is faster by more than a
// tenth. Of layouts of a kind that are as fast within 2 % the one with the least memory.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include "coordinator/planner/planner.h"
#include "coordinator/prepare/evaluate.h"

namespace terrace {

// What another layout may take at most where a plainer one takes `plain_seconds`.
double WorthIt(double plain_seconds);

struct TriedLayout {
  Evaluated evaluated;
  LayoutKind kind = LayoutKind::kPlain;
};

// Index of the best that fits; nothing when none does.
std::optional<size_t> BestOf(const std::vector<TriedLayout>& tried);

// `first` to the front, the others behind it: those that fit, the fastest first, then those that do
// not.
std::vector<Evaluated> InOrder(size_t first, std::vector<TriedLayout> tried);

// Index of the one that exceeds its tightest tier by the smallest factor. REQUIRES: not empty.
size_t NearestToFit(const v1::JobSpec& spec, const Budget& budget,
                    const std::vector<TriedLayout>& tried);

// The front by closed form, below what was chosen.
std::vector<Proposal> SmallerOnes(const std::vector<Proposal>& proposals, const Evaluated& chosen);

}  // namespace terrace
