// What collectives among ranks of this machine take, and what they take of its cores.
//
// Members are threads of this process, linked as ranks are: on the CPU by Gloo over TCP on
// loopback. Used on one thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/v1/hardware.pb.h"
#include "worker/comm/communicator.h"

namespace terrace {

// One of a group, on a thread of its own.
class LinkMember {
 public:
  virtual ~LinkMember() = default;
  virtual Communicator* group() = 0;
  virtual void* data() = 0;  // LinkProbe.elements of f32, zero
};

struct LinkProbe {
  int ranks_max = 2;
  int64_t elements = 0;  // of a sum
  int calls = 0;
  std::function<absl::StatusOr<std::unique_ptr<LinkMember>>(int rank, int size, RendezvousStore*)>
      join;
};

// Adds the links of groups of 2, 4, ... up to `ranks_max` members, and those of the profile for any
// group, which are those of 2. Returns the cores that a member of that one keeps busy. UNAVAILABLE
// when this host cannot even be connected with itself.
absl::StatusOr<double> MeasureRings(const LinkProbe& probe, v1::HardwareProfile* profile);

// The same on the CPU; and by how much a sum slows down a rank that computes with `threads` threads
// on as many cores: processor time that the sum takes over that of the threads, which does not
// depend on what else the machine does.
absl::Status MeasureLinks(int ranks_max, int threads, v1::HardwareProfile* profile);

}  // namespace terrace
