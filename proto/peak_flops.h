// What a device can do at most in an arithmetic: the peak that MFU is measured against.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "proto/v1/hardware.pb.h"

namespace terrace {

// In HardwareProfile.kernels, the peak of a precision that has no field of its own there: fp16 on
// tensor cores that have no bf16.
inline constexpr std::string_view kPeakKernel = "peak";

// FLOPs a second at `precision` of a layout ("fp32", "tf32", "bf16", "fp16", "fp8"). A profile
// without a rate of TF32 is of a device that computes it as fp32; without one of fp8, as bf16. fp16
// is bf16 on tensor cores, unless the profile has its own peak, and fp32 on a CPU. The fields of
// the profile are rates of operands in memory; products of operands in the cache are faster, and a
// step of a small model has many of those, so that the peak is the fastest of both. 0: unknown.
double PeakFlops(const v1::HardwareProfile& profile, std::string_view precision);

}  // namespace terrace
