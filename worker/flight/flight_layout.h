// What the bytes of a flight recorder are: shared by its writer (flight_recorder.cc) and its reader
// (flight_reader.cc), of interest to nobody else.
//
//   header | ring of memory events | one counter a stream | ring of steps
//
// Plain fields, so that a reader can copy them; the writer goes through std::atomic_ref.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "worker/flight/flight_recorder.h"

namespace terrace {

alignas(uint32_t) inline constexpr char kFlightMagic[8] = {'t', 'r', 'c', 'f', 'l', 'y', '0', '1'};
inline constexpr char kFlightSharedMemory[] = "/dev/shm";
inline constexpr size_t kFlightHeaderBytes = 4096;

struct FlightHeader {
  char magic[8];
  uint32_t streams;
  uint32_t events;
  int64_t pid;
  char program_sha256[64];
  uint64_t run;  // odd while a sequence is being changed
  int32_t sequence;
  int64_t step;
  int64_t reserved_bytes[kFlightTiers];
  int64_t pinned_bytes;
  int64_t external_bytes;
  int64_t prepared_anonymous_bytes;
  alignas(64) uint64_t events_begun;  // slots given out since the start
  int64_t steps;                      // slots of the ring of steps
  int64_t told_step;                  // the last one that was sent to a daemon
  int64_t places;                     // FlightWriter::Enter was called
  uint32_t activity;
};
static_assert(sizeof(FlightHeader) <= kFlightHeaderBytes);

struct FlightEventSlot {
  uint64_t stamp;  // number of the event + 1; 0 while it is being written
  FlightEvent event;
  uint64_t unused;
};
static_assert(sizeof(FlightEventSlot) == 64);

struct FlightStepSlot {
  int64_t step;  // 0 while it is being written
  uint32_t bytes;
  char message[kFlightStepBytesMax];
};
static_assert(sizeof(FlightStepSlot) == 128 && kFlightStepBytesMax % sizeof(uint32_t) == 0);

// The mapping. The counters follow it, and the ring of steps follows them.
struct FlightLayout {
  FlightHeader header;
  alignas(kFlightHeaderBytes) FlightEventSlot ring[kFlightEvents];

  FlightCounter* counters() {
    return reinterpret_cast<FlightCounter*>(reinterpret_cast<std::byte*>(this) + sizeof *this);
  }
  FlightStepSlot* steps() { return reinterpret_cast<FlightStepSlot*>(counters() + header.streams); }
};

inline constexpr size_t kFlightCountersAt = kFlightHeaderBytes + kFlightEvents * 64;
static_assert(sizeof(FlightLayout) == kFlightCountersAt);

inline size_t FlightStepsAt(size_t streams) {
  return kFlightCountersAt + streams * sizeof(FlightCounter);
}
inline size_t FlightBytes(size_t streams, size_t steps) {
  return FlightStepsAt(streams) + steps * sizeof(FlightStepSlot);
}

std::string FlightPath(std::string_view run_directory);

}  // namespace terrace
