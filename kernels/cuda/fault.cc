// What the fault word says, in words (context.h).
//
// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "kernels/cuda/device.h"

namespace terrace::kernels::cuda {

Status DescribeFault(Fault fault) {
  if (fault == kNoFault) return {};
  const auto op = static_cast<Op>(fault >> kFaultPositionBits);
  const Fault position = fault & ((Fault{1} << kFaultPositionBits) - 1);
  return {std::string(Name(op)) + ": the index at position " + std::to_string(position) +
          " is outside its table"};
}

}  // namespace terrace::kernels::cuda
