// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace terrace {
namespace {

TEST(CleanTextTest, ValidTextStaysAsItIs) {
  EXPECT_EQ(CleanText("café, \u4f60\u597d, \U0001f600\n\tnext"),
            "café, \u4f60\u597d, \U0001f600\n\tnext");
  EXPECT_EQ(CleanText(""), "");
}

TEST(CleanTextTest, BytesThatAreNotUtf8AreWrittenInHexadecimal) {
  EXPECT_EQ(CleanText("caf\xe9 latin1"), "caf\\xe9 latin1");
  EXPECT_EQ(CleanText("cut \xe4\xbd"), "cut \\xe4\\xbd");
  EXPECT_EQ(CleanText("overlong \xc0\xaf, surrogate \xed\xa0\x80"),
            "overlong \\xc0\\xaf, surrogate \\xed\\xa0\\x80");
}

TEST(CleanTextTest, TerminalsGetNoControlCharacters) {
  EXPECT_EQ(CleanText("\x1b[2Jgone\r\x07\x7f"), "\\x1b[2Jgone\\x0d\\x07\\x7f");
  EXPECT_EQ(CleanText(std::string("nul\0!", 5)), "nul\\x00!");
  EXPECT_EQ(CleanText("\u009b31m"), "\\xc2\\x9b31m");  // an escape sequence in one character
  EXPECT_EQ(CleanText("abc\u202edef\u2028"), "abc\\u202edef\\u2028");
}

TEST(CleanTextTest, LongTextIsCutBetweenCharactersAndSaysSo) {
  EXPECT_EQ(CleanText("\u4f60\u597d\u4f60", 7), "\u4f60\u597d... (3 more bytes)");
  const std::string clean = CleanText(std::string(10 << 20, 'x'));
  EXPECT_LT(clean.size(), kMessageBytesMax + 64);
  EXPECT_NE(clean.find("more bytes)"), std::string::npos);
}

TEST(CleanLineTest, NoTextForgesALine) {
  EXPECT_EQ(CleanLine("a\n2026-01-01 error forged"), "a\\n2026-01-01 error forged");
}

}  // namespace
}  // namespace terrace
