// Emits and places a graph: in one piece for each buffer, with pages at second addresses
// (pack_pages.h), or with waits that earn reuse where packing alone leaves too much unused.
//
// Pages cost a step next to nothing where they are the host's (docs/decisions/0012-*.md) and a
// search takes seconds to do what they do at once: there they come before it.
//
// Memory that a collective uses overlaps in time with what computation needs: weights are gathered
// a layer ahead, gradients stay until a computation two layers later waits for their reduction.
// Where even the search does not fit these lives together within 1 % (and 1 MiB) of the lower
// bound, they are made shorter: gathers begin half as far ahead, or reductions are waited for one
// layer later instead of two, or both, the first that does. Such waits cost time wherever links are
// the limit (up to a sixth of a step), so they are only taken for at least 1 % of the arena, and
// never by a program that fits its device limit without. Operations, their operands and the bytes
// sent stay the same; the waits are part of the program, so that checker and simulator see what
// they cost. Pages cost no waits: a program that does not fit its limit gets them first, and waits
// only where that does not do.
//
// Of many buffers the first packing does that fits the device limit within 1 % of the bound. Where
// pages are not for the asking 2 % do if no order does better: seconds of searches would gain
// nothing.
//
// Shorter lives have a lower bound as well, so that the certificate of such a program may be worse
// although it needs less: the arena keeps the bound before (unearned_bound_bytes), against which it
// is measured. Pure and deterministic; thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "coordinator/compiler/emit.h"
#include "coordinator/compiler/graph.h"
#include "coordinator/compiler/pack.h"
#include "proto/v1/program.pb.h"

namespace terrace::compiler {

enum class PagePolicy {
  kWhereTooLarge,  // where a program does not fit its device limit in one piece each
  kWhereLoose,     // there, and where orders leave more than 1 %
  kNever,
  kAlways,  // where orders leave more than 1 %
};

struct PackingPolicy {
  PackEffort effort = PackEffort::kFull;
  PagePolicy pages = PagePolicy::kWhereTooLarge;
  // What fits its device limit is not packed any better.
  bool only_to_fit = false;
};

// With kQuick nothing is earned. `input.graph` is `graph`, which has its workspaces. Sets its
// streams and waits. `program` has what Emit requires, and its device limit.
absl::Status EmitAndPlace(const EmitInput& input, const PackingPolicy& policy, Graph* graph,
                          v1::Program* program);

}  // namespace terrace::compiler
