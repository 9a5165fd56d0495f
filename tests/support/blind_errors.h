// The time model's errors over published runs that its constants were not fitted to.
//
// The constants that describe what hardware reaches of its datasheet are fitted anew without each
// source in turn, and predict it: the mean of a normal distribution around what their own sources
// cite (calibration.cc), moved by the other runs (one Gauss-Newton step in logarithms). Runs of
// sources that no constant ever saw (tests/data/blind_runs.csv) are predicted with the catalogue as
// it is.
//
// Used on one thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tests/support/published_runs.h"

namespace terrace {

struct BlindPrediction {
  const PublishedRun* run = nullptr;
  v1::HardwareProfile profile;  // with the constants of the other sources
  double tokens_per_second_per_device = 0;
  // Measured step time over the predicted one: above 1 the plan was too fast.
  double TimeRatio() const {
    return tokens_per_second_per_device / run->tokens_per_second_per_device;
  }
};

// Of runs that can be compared. Borrows `runs`.
std::vector<BlindPrediction> LeaveOneSourceOut(const std::vector<PublishedRun>& runs);
// With the catalogue's constants.
std::vector<BlindPrediction> AsCatalogued(const std::vector<PublishedRun>& runs);

// Errors are of speed: predicted over measured, minus 1.
struct BlindSummary {
  int runs = 0;
  double median = 0;  // of |error|
  double mean = 0;    // of |error|
  double bias = 0;    // mean of the error: above 0 predictions are too fast
  double worst = 0;   // of |error|
};
// Of one source; "": of all.
BlindSummary SummaryOf(const std::vector<BlindPrediction>& predictions,
                       const std::string& source = "");
// Of the ratios of times, `share` from 0 to 1; each source weighs as much as another, however many
// runs it has, since its runs miss alike.
double TimeRatioAt(const std::vector<BlindPrediction>& predictions, double share);
// The share of the runs whose ratio is within.
double Coverage(const std::vector<BlindPrediction>& predictions, double low, double high);

}  // namespace terrace
