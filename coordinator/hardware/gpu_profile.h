// What plans take for granted of a worker's GPUs: what was measured of them, completed from the
// catalogue, or the catalogue alone, which knows devices by the driver's names for them.
//
// Measured are kernels, memory, copies, instructions and the links inside a node. Peaks, by which
// MFU is counted, links between nodes and what collectives cost computation beside them stay the
// catalogue's. Pure. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "proto/v1/hardware.pb.h"

namespace terrace {

struct GpuKind {
  std::string name;          // the driver's: "NVIDIA H100 80GB HBM3"; empty: there is none here
  int64_t memory_bytes = 0;  // of a whole one
  uint32_t per_node = 0;     // ranks on a node; 0: as many as nodes of the kind usually have
};

// The catalogue's. Where it has no such device an H100 stands for it, which the name says.
v1::HardwareProfile WhatIfProfile(const GpuKind& gpu);
// What a process holds of one outside its arenas, before anything was learned.
int64_t WhatIfOverheadBytes(const GpuKind& gpu);

// Empty, or a sentence: why the profile says nothing of this GPU.
std::string WhyNotOf(const GpuKind& gpu, const v1::HardwareProfile& profile);

// `measured` where it is one of these GPUs, completed; otherwise the catalogue's.
v1::HardwareProfile RatesOf(const GpuKind& gpu, const v1::HardwareProfile& measured);

// One sentence for each thing that plans take from elsewhere than from these GPUs; empty where
// nothing needs saying.
std::string WarningOf(const GpuKind& gpu, const v1::HardwareProfile& measured);

}  // namespace terrace
