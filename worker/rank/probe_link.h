// What collectives among ranks of this machine take, and what they take of its cores.
//
// Members are threads of this process, linked as ranks are: by Gloo over TCP on loopback.
// Used on one thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "proto/v1/hardware.pb.h"

namespace terrace {

// Adds the links of groups of 2, 4, ... up to `ranks_max` members, and those of the profile for any
// group, which are those of 2; and by how much a sum slows down a rank that computes with `threads`
// threads on as many cores: processor time that the sum takes over that of the threads, which does
// not depend on what else the machine does. UNAVAILABLE when this host cannot even be connected
// with itself.
absl::Status MeasureLinks(int ranks_max, int threads, v1::HardwareProfile* profile);

}  // namespace terrace
