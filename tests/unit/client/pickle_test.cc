// SPDX-License-Identifier: Apache-2.0
#include "client/pickle.h"

#include <gtest/gtest.h>

namespace terrace {
namespace {

using namespace std::string_literals;

// What Python itself makes of it, tests/system/user/memory_watch_test.py shows.
TEST(PickleTest, DictionariesAndListsAreMarkedAndClosed) {
  Pickle pickle;
  pickle.BeginDict();
  pickle.String("a");
  pickle.BeginList();
  pickle.Int(-2);
  pickle.Pair(1, int64_t{1} << 40);
  pickle.Bool(false);
  pickle.EndList();
  pickle.EndDict();
  EXPECT_EQ(std::move(pickle).Finish(),
            "\x80\x02}(X\x01\0\0\0a](J\xfe\xff\xff\xffJ\x01\0\0\0\x8a\x08\0\0\0\0\0\x01\0\0\x86"
            "\x89"
            "eu."s);
}

TEST(PickleTest, LongListsComeInBatches) {
  Pickle pickle;
  pickle.BeginList();
  for (int i = 0; i < 2 * kPickleBatch + 1; ++i) pickle.Bool(true);
  pickle.EndList();
  const std::string batch = std::string(kPickleBatch, '\x88');
  EXPECT_EQ(std::move(pickle).Finish(), "\x80\x02](" + batch + "e(" + batch + "e(\x88" + "e.");
}

// One item, whatever is in it; a dictionary's keys and values are not counted.
TEST(PickleTest, AnItemOfAListCountsOnce) {
  Pickle pickle;
  pickle.BeginList();
  std::string expected = "\x80\x02](";
  for (int i = 0; i < kPickleBatch; ++i) {
    pickle.BeginDict();
    for (int j = 0; j < 2; ++j) pickle.Bool(true);
    pickle.EndDict();
    expected += "}(\x88\x88u";
  }
  pickle.BeginList();
  pickle.Pair(0, 0);
  pickle.EndList();
  pickle.EndList();
  EXPECT_EQ(std::move(pickle).Finish(), expected + "e(](J\0\0\0\0J\0\0\0\0\x86"s + "e" + "e.");
}

}  // namespace
}  // namespace terrace
