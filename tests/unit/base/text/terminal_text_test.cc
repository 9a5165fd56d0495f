// SPDX-License-Identifier: Apache-2.0
#include "base/text/terminal_text.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

TEST(TerminalTextTest, CharactersThatAreCutAreShownWhole) {
  TerminalText text;
  EXPECT_EQ(text.Next("caf\xc3"), "caf");
  EXPECT_EQ(text.Next("\xa9 \xf0\x9f\x98"), "\u00e9 ");
  EXPECT_EQ(text.Next("\x80\n"), "\U0001f600\n");
}

TEST(TerminalTextTest, WhatActsOnATerminalIsShownAsText) {
  TerminalText text;
  EXPECT_EQ(text.Next("a\r\nb\tc\x1b[2J\x07"), "a\nb\tc\\x1b[2J\\x07");
  EXPECT_EQ(text.Next("\xff\xe2\x82"), "\\xff");
  EXPECT_EQ(text.Next("\n"), "\\xe2\\x82\n") << "no character came of it";
}

}  // namespace
}  // namespace terrace
