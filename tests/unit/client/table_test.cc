// SPDX-License-Identifier: Apache-2.0
#include "client/table.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

TEST(TableTest, ColumnsAreAsWideAsTheirWidestCell) {
  Table table({"JOB", "STATE"});
  table.Add({"a-long-name", "RUNNING"});
  table.Add({"b", "QUEUED"});
  EXPECT_EQ(table.ToString(),
            "JOB          STATE\n"
            "a-long-name  RUNNING\n"
            "b            QUEUED\n");
}

TEST(TableTest, MultibyteCharactersTakeOneColumn) {
  Table table({"A", "B"});
  table.Add({"\xC3\xA9\xC3\xA9", "x"});
  EXPECT_EQ(table.ToString(), "A   B\n\xC3\xA9\xC3\xA9  x\n");
}

}  // namespace
}  // namespace terrace
