// The dry pass before initialisation: every distinct instruction once, so that thread pools,
// compiled primitives and connections exist before a rank reports its memory and says that it is
// ready.
//
// Instructions of the same op, attributes and shapes run the same code, so one layer stands for
// all. The result is garbage in every buffer. Pure.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <vector>

#include "worker/rank/prepared_program.h"

namespace terrace {

// To be executed one after the other: first all that compute, then all collectives. None waits,
// none has input or output.
std::vector<PreparedSequence> WarmSequences(std::span<const PreparedSequence> sequences);

}  // namespace terrace
