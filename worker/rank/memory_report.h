// What a prepared rank says of its memory, tier by tier: the line in the log, the metrics, the
// flight recorder, and whether the device's limit holds now that the bytes outside the arenas are
// known.
//
// Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/v1/program.pb.h"
#include "proto/v1/worker.pb.h"
#include "worker/flight/flight_recorder.h"
#include "worker/rank/program_memory.h"
#include "worker/train/agreement.h"
#include "worker/vm/vm.h"

namespace terrace {

struct PreparedMemory {
  const v1::Program& program;
  const ProgramMemory& memory;
  int64_t external_bytes = 0;  // outside the arenas, measured
  int64_t graph_bytes = 0;     // of these: the sequences' graphs (Vm::graph_bytes)
};

// "memory: device 512.0 MiB of 640.0 MiB, outside of it 60.1 MiB (allowed 96.0 MiB, graphs
// took 12.0 MiB of it); host ...".
std::string MemoryLine(const PreparedMemory& rank);

// What the process holds of the device outside the arenas, once everything is warm. Graphs for
// which the limit of any rank of the job has no room go, on all of them, with a line in the log:
// the job trains without them, only slower. So do graphs with collectives that another rank
// lacks. All ranks call this; null `agreement`: there is only this one.
absl::StatusOr<int64_t> MeasureExternal(const v1::Program& program, const ProgramMemory& memory,
                                        RendezvousStore* store, Backend* backend, Vm* vm,
                                        Agreement* agreement);

// The bytes outside the arenas count against the device, as its arena does. RESOURCE_EXHAUSTED with
// both and the limit. The other tiers hold nothing but their arena: CheckHostLimits has seen it.
absl::Status CheckDeviceLimit(const PreparedMemory& rank);

// Those that do not change any more.
v1::RankMetrics MemoryMetrics(const PreparedMemory& rank);

void RecordMemory(const v1::Program& program, const ProgramMemory& memory, FlightWriter* flight);

}  // namespace terrace
