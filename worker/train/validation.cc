// SPDX-License-Identifier: Apache-2.0
#include "worker/train/validation.h"

#include <cmath>

namespace terrace {

bool Validation::Add(int64_t step, double loss) {
  const bool is_first = state_.best_step == 0;
  const bool best =
      std::isfinite(loss) && (is_first || loss < state_.best_loss - rules_.improvement());
  if (best) {
    state_ = {.best_step = step, .best_loss = loss};
  } else {
    ++state_.worse;
  }
  return best;
}

}  // namespace terrace
