// SPDX-License-Identifier: Apache-2.0
#include "base/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace terrace {
namespace {

TEST(CommandLineTest, AnArgumentThatNoMessageCarriesIsNamed) {
  const char* const good[] = {"terrace", "run", "caf\u00e9.yaml"};
  EXPECT_TRUE(CheckCommandLine(3, good).ok());
  const char* const bad[] = {"terrace", "run", "caf\xe9.yaml"};
  EXPECT_THAT(std::string(CheckCommandLine(3, bad).message()),
              testing::HasSubstr("argument 2: got \"caf\\xe9.yaml\", must be UTF-8"));
}

}  // namespace
}  // namespace terrace
