// Which jobs a list is of.
//
// Pure and thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "proto/v1/list.pb.h"

namespace terrace {

struct JobFilter {
  std::vector<v1::JobState> states;  // none: any
  std::string owner, array;          // empty: any, or none
  std::string text;                  // in the id, the name or the message, in any case; empty: any

  bool TakesState(v1::JobState state) const;
  bool Takes(const v1::JobSummary& job) const;
};

// What `text` is looked for in, in lower case.
std::string WordsOf(const v1::JobSummary& job);

}  // namespace terrace
