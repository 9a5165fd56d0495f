// The formats that change the numbers and that a spec allows (formats.allow): specs in which some
// of them are pinned, to be searched like any other.
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/prepare/search.h"
#include "proto/v1/job.pb.h"

namespace terrace {

// One for each format that is allowed and not pinned.
std::vector<v1::JobSpec> WithAllowedFormats(const v1::JobSpec& spec);

struct AllowedSearch {
  v1::JobSpec spec;  // the one whose layouts these are
  Searched searched;
};
// The search of the spec as it is, of those above, and of all their formats together. Formats that
// change the numbers are chosen where nothing fits without, and otherwise where the step is faster
// by more than a tenth (WorthIt); of several the fastest, and one rather than all where that is not
// faster by as much. Where nothing fits the smaller of what comes nearest. A format that no layout
// of the spec can have, and one whose search is ended early, is passed over. Errors are those of
// the search of the spec as it is.
absl::StatusOr<AllowedSearch> SearchAllowed(const v1::JobSpec& spec, const Model& model,
                                            const Budget& budget, const SearchOptions& options,
                                            SearchCost* cost);

}  // namespace terrace
