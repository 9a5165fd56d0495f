// The dry pass before initialisation: every distinct computation once, so that thread pools and
// compiled primitives exist before a rank reports its memory and says that it is ready.
//
// Instructions of the same op, attributes and shapes run the same code, so one layer stands for
// all. Groups are warmed when they are connected: ranks of several stages could not agree here on
// what is distinct. The result is garbage in every buffer. Pure.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "worker/vm/prepared_program.h"

namespace terrace {

// Computations only; none waits.
PreparedSequence WarmSequence(std::span<const PreparedSequence> sequences);

}  // namespace terrace
