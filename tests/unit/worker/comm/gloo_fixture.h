// Members of a group over Gloo, as threads or as processes, who meet in a folder.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "worker/comm/communicator.h"
#include "worker/comm/file_rendezvous.h"

namespace terrace {

class GlooTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  absl::StatusOr<std::unique_ptr<Communicator>> Join(int rank, int size,
                                                     int64_t timeout_ms = 10'000,
                                                     int64_t call_timeout_ms = 0) {
    FileRendezvous store(folder_);
    return ConnectGloo({.name = "data.0",
                        .rank = rank,
                        .size = size,
                        .interface_address = "127.0.0.1",
                        .timeout_ms = timeout_ms,
                        .call_timeout_ms = call_timeout_ms,
                        .ranks = ranks_,
                        .link = link_},
                       &store);
  }

  // Runs `body` on one thread a rank.
  void OnRanks(int size, const std::function<void(Communicator*)>& body) {
    std::filesystem::remove_all(folder_);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        auto group = Join(rank, size);
        ASSERT_TRUE(group.ok()) << group.status();
        body(group->get());
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::filesystem::path folder_;
  std::vector<uint32_t> ranks_;
  LinkLimit link_;
};

}  // namespace terrace
