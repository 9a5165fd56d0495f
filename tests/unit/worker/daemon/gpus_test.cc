// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/gpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr char kTwo[] =
    R"({"devices": 2, "name": "NVIDIA H100 80GB HBM3", "memory_bytes": 85000000000})";

TEST(GpusTest, AWorkerOffersWhatThereIsUnlessItIsTold) {
  const Gpus two = ParseGpus(kTwo), none = ParseGpus(R"({"devices": 0, "problem": "no driver"})");
  EXPECT_EQ(two.devices, 2);
  EXPECT_EQ(two.name, "NVIDIA H100 80GB HBM3");
  EXPECT_TRUE(*OffersGpus("auto", two));
  EXPECT_TRUE(*OffersGpus("cuda", two));
  EXPECT_FALSE(*OffersGpus("cpu", two));
  EXPECT_FALSE(*OffersGpus("auto", none));
  const auto refused = OffersGpus("cuda", none);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("--device: got cuda, but no driver; "));
}

TEST(GpusTest, WhatIsNoListIsNoGpu) {
  for (const char* text : {"", "{", "[]", R"({"devices": "two"})", R"({"devices": -1})"}) {
    const Gpus gpus = ParseGpus(text);
    EXPECT_EQ(gpus.devices, 0) << text;
    EXPECT_NE(gpus.problem, "") << text;
  }
}

TEST(GpusTest, RanksThatShareAGpuShareItsMemory) {
  const Gpus two = ParseGpus(kTwo);
  EXPECT_EQ(MemoryOfEach(two, 1), 85000000000);
  EXPECT_EQ(MemoryOfEach(two, 2), 85000000000);
  EXPECT_EQ(MemoryOfEach(two, 3), 42500000000);
  EXPECT_EQ(MemoryOfEach(two, 4), 42500000000);
}

}  // namespace
}  // namespace terrace
