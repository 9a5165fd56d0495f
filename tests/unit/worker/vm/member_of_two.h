// Member 0 of a group of two whose other member is played by what a test overrides. All calls
// succeed and do nothing.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "worker/comm/communicator.h"

namespace terrace {

class MemberOfTwo : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 2; }
  absl::Status AllReduce(void*, int64_t, ReduceType) override { return {}; }
  absl::Status ReduceScatter(const void*, void*, int64_t, ReduceType) override { return {}; }
  absl::Status AllGather(const void*, void*, int64_t) override { return {}; }
  absl::Status AllToAll(const void*, void*, int64_t) override { return {}; }
  absl::Status RingShift(const void*, void*, int64_t) override { return {}; }
  absl::Status Broadcast(void*, int64_t, int) override { return {}; }
  absl::Status Send(const void*, int64_t, int) override { return {}; }
  absl::Status Receive(void*, int64_t, int) override { return {}; }
  absl::Status Barrier() override { return {}; }
  void Abort() override {}
  int64_t bytes_sent() const override { return 0; }
};

}  // namespace terrace
