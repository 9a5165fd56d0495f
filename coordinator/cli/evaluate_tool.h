// `terrace evaluate` on this machine or what-if hardware: reads the spec, evaluates it, prints what
// it found and writes its page.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"

namespace terrace {

struct EvaluateOptions {
  std::string spec;
  std::string profile;  // as of ReadJobHere(), with `cluster` empty
  std::string cluster;  // as of ReadWhatIfJob(); empty: this machine
  std::string html;     // file of the page; empty: none
  double seconds = 120;
  bool brief = false;
  bool json = false;
};

absl::Status PrintEvaluation(const EvaluateOptions& options);

}  // namespace terrace
