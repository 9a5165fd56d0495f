// How far what-if plans were off over published runs that the time model's constants were not
// fitted to: a source at a time left out, and sources that no constant ever saw. Recomputed and
// held by blind_errors_test; the table is tests/bench/calibrate.cc's.
//
// Thread-safe: constants.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace terrace {

// Of the measured time of a step over the predicted one, the tenth and the ninetieth percentile.
struct BlindErrors {
  double low = 0;
  double high = 0;
  double coverage = 0;  // share of the runs between them
  uint32_t runs = 0;
};
inline constexpr BlindErrors kBlindErrors = {
    .low = 0.89, .high = 1.15, .coverage = 0.8, .runs = 83};

}  // namespace terrace
