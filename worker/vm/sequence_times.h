// Where the time of one execution went, from the slices that it left: how long each kind of work
// was busy, how long the compute stream waited, and what moved between tiers.
//
// A wait is charged to what was under way meanwhile on the path that ended it: when a product waits
// for a gather that itself waited for a read from NVMe, the read's part of the wait is offload and
// only the rest is communication. Iterations of a loop that were not recorded (played_cursor.h)
// took the time between those that were, and the same shares of it went to each. Pure.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "google/protobuf/repeated_ptr_field.h"
#include "proto/v1/job.pb.h"
#include "proto/v1/program.pb.h"
#include "worker/vm/prepared_program.h"

namespace terrace {

struct CopyTraffic {
  int64_t bytes = 0;
  double seconds = 0;  // busy
};
using TrafficByKind = std::array<CopyTraffic, v1::CopyKind_ARRAYSIZE>;  // by v1::CopyKind

// In seconds.
struct SequenceTimes {
  double total = 0;               // from the first start to the last end
  double compute = 0;             // busy, of the compute stream
  double collective = 0;          // busy, of all streams of collectives and transfers
  double collective_exposed = 0;  // the compute stream, or the end of all, waited for one of them
  double offload = 0;          // busy, of all copies between tiers and of computation on the host
  double offload_exposed = 0;  // the compute stream, or the end of all, waited for one of them
};

// Of the last execution that left slices, which must have succeeded.
SequenceTimes Times(const PreparedSequence& sequence);
// Its seconds from the first start to the last end.
double Seconds(const PreparedSequence& sequence);

// Of an execution `scale` times as long, of which the same shares went to each.
SequenceTimes Scaled(const SequenceTimes& times, double scale);

// Adds what the last execution copied, in all iterations, by kind. It took `scale` times as long as
// its slices say.
void AddTraffic(const PreparedSequence& sequence, double scale, TrafficByKind* traffic);

// One line a kind that moved anything.
google::protobuf::RepeatedPtrField<v1::OffloadTraffic> TrafficLines(const TrafficByKind& traffic);

}  // namespace terrace
