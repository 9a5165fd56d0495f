// SPDX-License-Identifier: Apache-2.0
#include "base/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace terrace {
namespace {

using testing::HasSubstr;

std::string Problem(std::initializer_list<const char*> words) {
  return std::string(CheckCommandLine(static_cast<int>(words.size()), words.begin()).message());
}

TEST(CommandLineTest, AnArgumentThatNoMessageCarriesIsNamed) {
  EXPECT_EQ(Problem({"terrace", "run", "caf\u00e9.yaml"}), "");
  EXPECT_THAT(Problem({"terrace", "run", "caf\xe9.yaml"}),
              HasSubstr("argument 2: got \"caf\\xe9.yaml\", must be UTF-8"));
  EXPECT_THAT(Problem({"terrace", "generate", "a", "--prompt", "caf\xe9"}),
              HasSubstr("--prompt: got \"caf\\xe9\", must be UTF-8"));
  EXPECT_THAT(Problem({"terrace", "--output=json", "caf\xe9"}), HasSubstr("argument 2: got"));
}

TEST(CommandLineTest, WholeNumbersAreReadAsInASpec) {
  EXPECT_EQ(WholeNumber("010"), "10");
  EXPECT_EQ(WholeNumber("000"), "0");
  EXPECT_EQ(WholeNumber("-007"), "-7");
  EXPECT_EQ(WholeNumber("+7"), "7");
  EXPECT_EQ(WholeNumber("1_000"), "1000");
  EXPECT_EQ(WholeNumber("0x10"), "16");
  for (const char* other : {"", "-", "x", "1.5", "0xzz", "1e3", "9x", "_"}) {
    EXPECT_EQ(WholeNumber(other), other);
  }
}

TEST(CommandLineTest, WholeNumbersThat64BitsDoNotHoldAreRefused) {
  for (const char* good : {"0", "-1", "9223372036854775807", "-9223372036854775808", "x", ""}) {
    EXPECT_EQ(WholeNumberProblem(good), "");
  }
  for (const char* bad : {"9223372036854775808", "-9223372036854775809", "99999999999999999999",
                          "0x10000000000000000", "0xzz"}) {
    EXPECT_THAT(WholeNumberProblem(bad), HasSubstr("to 9223372036854775807")) << bad;
  }
}

}  // namespace
}  // namespace terrace
