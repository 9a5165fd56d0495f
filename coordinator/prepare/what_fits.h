// For a job that does not fit: what would. Found by really compiling changes of the spec, the
// cheapest first (variations.h), those that closed forms call infeasible left out.
//
// However large the model and the cluster, it ends after so many layouts compared and instructions
// compiled, and says what it has not tried then. A little of each change is tried first, so that
// one that fits is found soon; what is left goes into cheaper ones.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/planner/planner.h"
#include "coordinator/prepare/evaluate.h"
#include "coordinator/prepare/search.h"
#include "proto/v1/job.pb.h"

namespace terrace {

// A change of the spec, compiled.
struct Change {
  std::string words;  // "layout.micro_batch 1"
  Evaluated evaluated;
  bool within_spec = false;  // it changes nothing that the spec says: the job fits after all
};
struct Changes {
  std::vector<Change> found;           // the cheapest first
  std::vector<std::string> not_tried;  // cheaper ones, or others that may fit too, in words
};
// What trying changes may cost, counted, so that the same in gives the same out. It is timed only
// where there is something to ask.
struct ChangeLimits {
  int64_t compared = 400'000;      // layouts, by closed form
  int64_t instructions = 900'000;  // compiled
  InTime in_time = {};
};
// What a search has left of them: one that compiled much itself leaves less, so that all together
// ends soon.
ChangeLimits LimitsAfter(const SearchCost& search);
// Told what is tried next, in words; first, once, that closed forms are asked.
using TellSearch = std::function<void(const std::string& words)>;

// At most `most`; none when no layout, precision or sequence_length fits. `tell` may be empty.
Changes ChangesThatFit(const v1::JobSpec& spec, const Budget& budget, size_t most,
                       const TellSearch& tell, const ChangeLimits& limits = {});

// RESOURCE_EXHAUSTED that says what the layout that was found nearest needs of each tier that is
// too small, what there is, what holds the most, and the cheapest of `changes`.
absl::Status DoesNotFit(const v1::JobSpec& spec, const Budget& budget, const Searched& searched,
                        const Changes& changes);
absl::Status DoesNotFit(const v1::JobSpec& spec, const Budget& budget, const Searched& searched,
                        const ChangeLimits& limits);

}  // namespace terrace
