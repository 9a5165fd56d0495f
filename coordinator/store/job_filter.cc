// SPDX-License-Identifier: Apache-2.0
#include "coordinator/store/job_filter.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace terrace {

bool JobFilter::TakesState(v1::JobState state) const {
  return states.empty() || std::find(states.begin(), states.end(), state) != states.end();
}

bool JobFilter::Takes(const v1::JobSummary& job) const {
  return TakesState(job.state()) && (owner.empty() || job.owner() == owner) &&
         (array.empty() || job.array() == array) &&
         (text.empty() || absl::StrContains(WordsOf(job), absl::AsciiStrToLower(text)));
}

std::string WordsOf(const v1::JobSummary& job) {
  return absl::AsciiStrToLower(absl::StrCat(job.id(), "\n", job.name(), "\n", job.message()));
}

}  // namespace terrace
