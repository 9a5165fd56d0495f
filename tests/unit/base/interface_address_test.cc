// SPDX-License-Identifier: Apache-2.0
#include "base/interface_address.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

TEST(InterfaceAddressTest, AnInterfaceStandsForItsAddressBeforeAPort) {
  EXPECT_EQ(WithoutInterface("lo:7070"), "127.0.0.1:7070");
  for (const char* other : {"127.0.0.1:7070", "[::1]:7070", "0.0.0.0:0", "localhost:1", "lo", "",
                            "lo.example.org:7070", ":7070"}) {
    EXPECT_EQ(WithoutInterface(other), other);
  }
}

}  // namespace
}  // namespace terrace
