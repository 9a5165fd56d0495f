// SPDX-License-Identifier: Apache-2.0
#include "base/unique_fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>

namespace terrace {
namespace {

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) != -1; }

TEST(UniqueFdTest, ClosesWhatItOwns) {
  int raw = open("/dev/null", O_RDONLY);
  { UniqueFd fd(raw); }
  EXPECT_FALSE(IsOpen(raw));
}

TEST(UniqueFdTest, MovingMovesOwnership) {
  UniqueFd a(open("/dev/null", O_RDONLY));
  const int raw = a.get();
  UniqueFd b(std::move(a));
  EXPECT_FALSE(a.valid());
  EXPECT_TRUE(IsOpen(raw));
  b.Reset();
  EXPECT_FALSE(IsOpen(raw));
}

TEST(UniqueFdTest, ReleaseLeavesItOpen) {
  UniqueFd fd(open("/dev/null", O_RDONLY));
  const int raw = fd.Release();
  EXPECT_TRUE(IsOpen(raw));
  close(raw);
}

}  // namespace
}  // namespace terrace
