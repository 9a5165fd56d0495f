// SPDX-License-Identifier: Apache-2.0
#include "base/text/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace terrace {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::string Problem(std::string_view text) { return std::string(CheckJson(text).message()); }

TEST(JsonTextTest, WhatIsNoneIsNamedWithItsPlace) {
  EXPECT_TRUE(CheckJson(R"({"a": [1, {"b": null}], "c": 1e-400})").ok());
  EXPECT_TRUE(CheckJson("\xef\xbb\xbf{}").ok()) << "a byte order mark";
  EXPECT_THAT(Problem("{\n  \"a\": 1,\n  \"b\": NaN\n}"),
              AllOf(HasSubstr("line 3, column 8: syntax error"), HasSubstr("last read")));
  EXPECT_THAT(Problem("{\"a\": 1e400}"), AllOf(HasSubstr("line 1"), HasSubstr("1e400")));
  EXPECT_THAT(Problem("{\"a\": "), HasSubstr("unexpected end of input"));
  EXPECT_THAT(Problem(""), HasSubstr("unexpected end of input"));
  EXPECT_THAT(Problem("{\"a\": \"caf\xe9\"}"),
              AllOf(HasSubstr("UTF-8"), Not(HasSubstr("json.exc"))));
  EXPECT_THAT(Problem("\x1b[31m"), Not(HasSubstr("\x1b")));
  EXPECT_LT(Problem(std::string(5000, 'x')).size(), 400u);
}

TEST(JsonTextTest, DepthIsBounded) {
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(CheckJson(nested(kJsonDepthMax)).ok());
  for (const int depth : {kJsonDepthMax + 1, 1'000'000}) {
    EXPECT_THAT(Problem(nested(depth)), HasSubstr("nested more than 64 deep"));
  }
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_THAT(Problem(objects), HasSubstr("nested more than 64 deep"));
}

TEST(JsonTextTest, KeysThatStandTwiceAreNamedOnce) {
  std::vector<std::string> repeated;
  EXPECT_TRUE(CheckJson(R"({"a": 1, "b": {"a": 1, "c": 2, "c": 3, "c": 4}, "a": 2,
                            "d": [{"e": 1}, {"e": 2, "e": 3}]})",
                        &repeated)
                  .ok());
  EXPECT_THAT(repeated, ElementsAre("b.c", "a", "d.e"));
  std::string many = "{";
  for (int i = 0; i < 1000; ++i)
    many += "\"" + std::to_string(i) + "\":0,\"" + std::to_string(i) + "\":0,";
  repeated.clear();
  EXPECT_TRUE(CheckJson(many + "\"x\":0}", &repeated).ok());
  EXPECT_LT(repeated.size(), 50u);
}

}  // namespace
}  // namespace terrace
