// The orders in which the device that the host plays may execute a graph, and graphs that lack an
// edge between their queues.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include "tests/unit/kernels/cuda/simt/fake_device.h"

namespace terrace {

inline void InAllOrders(void (*expect)(const simt::DeviceOptions&)) {
  expect({.order = simt::DeviceOptions::Order::kLazy});
  expect({.order = simt::DeviceOptions::Order::kEager});
  for (unsigned seed = 1; seed <= 20; ++seed)
    expect({.order = simt::DeviceOptions::Order::kRandom, .seed = seed});
}

// Capturing what a Rig runs without its n-th edge gives a wrong run or no graph.
template <typename Rig>
bool NoticesWithout(int64_t wait) {
  using Order = simt::DeviceOptions::Order;
  for (unsigned seed = 0; seed <= 10; ++seed) {
    simt::ResetDevice(
        {.order = seed == 0 ? Order::kLazy : Order::kRandom, .seed = seed, .dropped_wait = wait});
    Rig rig;
    EXPECT_TRUE(rig.Open().ok());
    EXPECT_TRUE(rig.RunIsRight()) << "the one that is launched one by one";
    if (!rig.RunIsRight() || rig.vm().graph_runs() == 0) return true;
  }
  return false;
}

}  // namespace terrace
