// The rates of hardware that a step's time hangs on, one by one: a profile with one of them changed
// tells by how much (docs/cluster.md, "How good it is").
//
// Pure and thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "proto/v1/hardware.pb.h"

namespace terrace {

enum class Rate {
  kMatmul,      // with the head and its loss
  kAttention,   // both directions
  kMemory,      // of the device
  kLaunch,      // kernels started a second
  kNode,        // links inside a node
  kNetwork,     // links between nodes
  kHostLink,    // copies to and from the host
  kHostMemory,  // what the host computes
  kNvme,        // both directions
};
inline constexpr std::array kRates = {Rate::kMatmul,   Rate::kAttention,  Rate::kMemory,
                                      Rate::kLaunch,   Rate::kNode,       Rate::kNetwork,
                                      Rate::kHostLink, Rate::kHostMemory, Rate::kNvme};

// "matmul, bf16", "links between nodes".
std::string RateName(Rate rate, std::string_view precision);

// The rate, `factor` times as high. Products: of this precision alone, "": of all.
v1::HardwareProfile WithRate(v1::HardwareProfile profile, Rate rate, double factor,
                             std::string_view precision = "");

}  // namespace terrace
