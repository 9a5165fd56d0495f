// What copies between the tiers and instructions of the VM take on this machine.
//
// Used on one thread; copies in both directions start a second one.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "proto/v1/hardware.pb.h"

namespace terrace {

// Copies of the size that offloading makes, as the VM's streams do them: to the device, to the
// host, and both at once.
absl::Status MeasureCopies(v1::HardwareProfile* profile);

// What an instruction takes beside its work, what it takes until another stream goes on, and until
// all threads of that stream do.
absl::Status MeasureStreams(int threads, v1::HardwareProfile* profile);

// Reads and writes of `folder`'s drive at several depths, through the engine that ranks use, and
// both at once at the depth that is their default. The status is the engine's.
absl::Status MeasureNvme(const std::string& folder, v1::HardwareProfile* profile);

}  // namespace terrace
