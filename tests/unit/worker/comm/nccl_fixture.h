// Members of a group over the fake NCCL (tests/support/fake_nccl.h), one thread and one device
// each.
//
// Used on one thread; bodies run on the members'.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "tests/support/fake_nccl.h"
#include "tests/unit/worker/comm/comm_fixture.h"
#include "worker/comm/nccl_communicator.h"

namespace terrace {

class NcclCommunicatorTest : public testing::Test {
 protected:
  ~NcclCommunicatorTest() override {
    fake_nccl::SetFaults(nullptr);
    EXPECT_THAT(fake_nccl::TakeMisuse(), testing::IsEmpty());
    EXPECT_EQ(fake_nccl::CountLive(), fake_nccl::Live()) << "something was not closed";
  }

  // A rank's device and its stream of communication.
  struct Stream {
    explicit Stream(int rank) {
      fake_nccl::SetDevice(rank);
      stream = fake_nccl::NewStream();
    }
    ~Stream() { fake_nccl::FreeStream(stream); }
    CUstream_st* stream;
  };

  GroupOptions Options(int rank, int size) const {
    GroupOptions options = {.name = "data.0", .rank = rank, .size = size};
    options.timeout_ms = timeout_ms_;
    for (int member = 0; member < size; ++member) options.ranks.push_back(10 + member);
    for (int peer = 0; messages_ && peer < size; ++peer)
      if (peer != rank) options.message_peers.push_back(peer);
    options.all_to_all = all_to_all_;
    return options;
  }

  // One thread a member, each with a device of its own.
  void OnRanks(int size, const std::function<void(NcclCommunicator*)>& body) {
    MapRendezvous store;
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        const Stream stream(rank);
        const auto group = ConnectNccl(Options(rank, size), &store, stream.stream);
        ASSERT_TRUE(group.ok()) << group.status();
        body(group->get());
      });
    }
  }

  // Faults of one operation of one member; operations count from the end of warming up.
  static void FailOnce(const std::string& kind, int rank, fake_nccl::Fault fault) {
    fake_nccl::SetFaults([=](const fake_nccl::Call& call) {
      return call.kind == kind && call.rank == rank ? fault : fake_nccl::Fault{};
    });
  }

  int64_t timeout_ms_ = 10'000;
  bool messages_ = false, all_to_all_ = true;
};

inline void ExpectCode(const absl::Status& status, absl::StatusCode code, const std::string& text) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(text));
}

}  // namespace terrace
