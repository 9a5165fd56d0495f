// SPDX-License-Identifier: Apache-2.0
#include "base/log_listener.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/log.h"

namespace terrace {
namespace {

TEST(LogListenerTest, WarningsAreHeardUntilNobodyListens) {
  std::vector<std::string> heard;
  log::ListenToWarnings([&heard](std::string_view text) { heard.emplace_back(text); });
  log::Warn("a tensor of ", 3);
  log::Info("not this");
  log::Error("nor this");
  log::WarnInLogOnly("nor this");
  log::ListenToWarnings({});
  log::Warn("nor this");
  EXPECT_THAT(heard, testing::ElementsAre("a tensor of 3"));
}

// A listener that warns itself, or ends the listening, must not wait for itself.
TEST(LogListenerTest, AListenerMayLogAndStop) {
  int heard = 0;
  log::ListenToWarnings([&heard](std::string_view) {
    ++heard;
    log::ListenToWarnings({});
    log::Warn("from the listener");
  });
  log::Warn("first");
  EXPECT_EQ(heard, 1);
}

}  // namespace
}  // namespace terrace
