// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/shell_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace terrace {
namespace {

using testing::ElementsAre;

TEST(ShellWordsTest, QuotesBackslashesAndContinuedLinesAreAsInSh) {
  EXPECT_THAT(*ShellWords("--a 1 \\\n  --b 'x y' # no\n --c=\"p q\"r \\ s"),
              ElementsAre("--a", "1", "--b", "x y", "--c=p qr", " s"));
  EXPECT_THAT(*ShellWords("  \n"), ElementsAre());
  EXPECT_THAT(*ShellWords("''"), ElementsAre(""));
}

TEST(ShellWordsTest, AnOpenQuoteIsAnError) { EXPECT_FALSE(ShellWords("--a 'b").ok()); }

}  // namespace
}  // namespace terrace
