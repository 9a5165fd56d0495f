// SPDX-License-Identifier: Apache-2.0
#include "worker/data/unicode/normal_form.h"

#include "gtest/gtest.h"

namespace terrace {
namespace {

TEST(NormalFormTest, ComposesReordersAndExcludes) {
  const std::pair<const char*, const char*> cases[] = {
      {"plain ASCII", "plain ASCII"},
      {"e\u0301", "\u00e9"},
      {"A\u030a", "\u00c5"},
      {"\u212b", "\u00c5"},                // Angstrom sign
      {"q\u0307\u0323", "q\u0323\u0307"},  // order of marks
      {"e\u0323\u0302", "\u1ec7"},         // two steps
      {"e\u0302\u0323", "\u1ec7"},
      {"\u1112\u1161\u11ab", "\ud55c"},  // Hangul
      {"\uac00\u11a8", "\uac01"},
      {"\u0958", "\u0915\u093c"},  // excluded from composition
      {"\u0344", "\u0308\u0301"},
      {"a\u0315\u0300\u05ae\u0300b", "\u00e0\u05ae\u0300\u0315b"},  // blocked mark
      {"\n\u0301", "\n\u0301"},
  };
  for (const auto& [in, out] : cases) {
    EXPECT_EQ(Normalize(in, NormalForm::kNfc), out) << in;
    EXPECT_EQ(Normalize(out, NormalForm::kNfc), out) << "normal text stays";
    EXPECT_TRUE(!IsSurelyNormal(in, NormalForm::kNfc) || std::string(in) == out) << in;
  }
  EXPECT_TRUE(IsSurelyNormal("na\u00efve \u4f60\u597d \ud55c \u041f", NormalForm::kNfc));
  EXPECT_FALSE(IsSurelyNormal("e\u0301", NormalForm::kNfc));
}

TEST(NormalFormTest, BytesThatAreNotUtf8Stay) {
  for (const std::string text :
       {"\xff\xc3", "a\xe0\x80\x80z", "\xf8\x88\x80\x80\x80", "\xc3", "\xed\xa0\x80"}) {
    EXPECT_EQ(Normalize(text, NormalForm::kNfc), text);
  }
}

}  // namespace
}  // namespace terrace
