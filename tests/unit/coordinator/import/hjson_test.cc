// Expected values: what the hjson package for Python (3.1) makes of the same text.
//
// SPDX-License-Identifier: Apache-2.0
#include "coordinator/import/hjson.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace terrace {
namespace {

using testing::HasSubstr;

std::string Read(std::string_view text) {
  const auto json = ParseHjson(text);
  EXPECT_TRUE(json.ok()) << json.status();
  return json.ok() ? json->dump() : "";
}
std::string Error(std::string_view text) {
  const auto json = ParseHjson(text);
  EXPECT_FALSE(json.ok()) << text;
  return std::string(json.status().message());
}

TEST(HjsonTest, JsonIsHjson) {
  const std::string json =
      R"({"a":[1,-2.5,1e+20,true,false,null,"x,y # z"],"b":{"c":"\n\u00e9\"\\"}})";
  EXPECT_EQ(Read(json), nlohmann::json::parse(json).dump());
}

TEST(HjsonTest, CommentsOfThreeKindsAreSkipped) {
  EXPECT_EQ(Read("{ # one\n \"a\": 8, // two\n /* three\n */ \"b\": {\"c\": 2} # four\n}"),
            R"({"a":8,"b":{"c":2}})");
  EXPECT_EQ(Read("{\"a\": 8, /* c */ \"b\": {\"c\": 2}}"), R"({"a":8,"b":{"c":2}})");
}

TEST(HjsonTest, CommasTrailOrAreLeftOut) {
  EXPECT_EQ(Read("{\"a\": 1,}"), R"({"a":1})");
  EXPECT_EQ(Read("{\"a\": [1, 2,], \"b\": 3,\n}"), R"({"a":[1,2],"b":3})");
  EXPECT_EQ(Read("{\n a: 1\n b: [\n 1\n 2\n ]\n}"), R"({"a":1,"b":[1,2]})");
}

TEST(HjsonTest, KeysAndStringsNeedNoQuotes) {
  EXPECT_EQ(Read("{a: cpu\n b: hello world # and this\n c: '1\\'2'}"),
            R"({"a":"cpu","b":"hello world # and this","c":"1'2"})");
  EXPECT_EQ(Read("a: 1\nb: true # yes\nc: 1 2\nd: 007"), R"({"a":1,"b":true,"c":"1 2","d":"007"})");
  EXPECT_EQ(Read("a: 1e308\nb: 1e400 of them"), R"({"a":1e+308,"b":"1e400 of them"})");
}

TEST(HjsonTest, TextOfSeveralLinesLosesItsIndentation) {
  EXPECT_EQ(Read("{a: '''  x '''}"), R"({"a":"x "})");
  EXPECT_EQ(Read("{\n  a:\n    '''\n    one\n      two\n    '''\n  b: 1\n}"),
            R"({"a":"one\n  two","b":1})");
}

TEST(HjsonTest, WhatIsNoneIsRefusedWithLineAndColumn) {
  EXPECT_THAT(Error("{\"a\": 1\n \"b\" 2}"), HasSubstr("line 2, column 6: got '2', must be ':'"));
  EXPECT_THAT(Error("{,}"), HasSubstr("line 1, column 2: got ',', must be a key"));
  EXPECT_THAT(Error("{\"a\": }"), HasSubstr("must be a value"));
  EXPECT_THAT(Error("{\"a\": 1"), HasSubstr("got the end, must be a '}'"));
  EXPECT_THAT(Error("[1, 2"), HasSubstr("must be a ']'"));
  EXPECT_THAT(Error("{\"a\": \"x\n\"}"), HasSubstr("ends in its line"));
  EXPECT_THAT(Error("{\"a\": \"\\x\"}"), HasSubstr("escapes of JSON"));
  EXPECT_THAT(Error("{} {}"), HasSubstr("nothing behind"));
  EXPECT_THAT(Error("{ /* "), HasSubstr("*/"));
  EXPECT_THAT(Error("{a: '''x"), HasSubstr("'''"));
  EXPECT_THAT(Error("{\"a\": 1, a: 2}"), HasSubstr("a: got the key twice"));
  for (const char* text : {"{a: 1e400}", "{\"a\": -1e999\n b: 1}", "[1, 1e400, 2]"}) {
    EXPECT_THAT(Error(text), HasSubstr("must be a number that fits into 64 bits")) << text;
  }
  EXPECT_THAT(Error(std::string(100000, '[')), HasSubstr("nested at most"));
}

}  // namespace
}  // namespace terrace
