// SPDX-License-Identifier: Apache-2.0
#include "base/tls/tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

using testing::HasSubstr;

const absl::Time kNow = absl::FromUnixSeconds(1'800'000'000);  // 2027-01-15 08:00 UTC

std::string Refusal(const std::string& text) {
  const auto tokens = Tokens::Parse(text);
  EXPECT_EQ(tokens.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(tokens.status().message());
}

TEST(TokensTest, WhoHoldsATokenIsFoundByItAlone) {
  const std::string token = *MakeToken(), other = *MakeToken();
  EXPECT_NE(token, other);
  EXPECT_GE(token.size(), 64u);
  const std::string text = absl::StrCat(
      "# people\n\n", TokenLine(token, {.grant = {Role::kSubmitter, "alice"}}),
      TokenLine(other,
                {.grant = {Role::kOperator, "bob"}, .end = absl::FromUnixSeconds(1'800'057'600)}));
  EXPECT_EQ(text.find(token), std::string::npos);
  EXPECT_THAT(text, HasSubstr(" submitter alice -\n"));
  EXPECT_THAT(text, HasSubstr(" operator bob 2027-01-15\n"));
  const auto tokens = Tokens::Parse(text);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(tokens->Find(token, kNow)->grant, (Grant{Role::kSubmitter, "alice"}));
  EXPECT_EQ(tokens->Find(other, kNow)->grant.name, "bob") << "the day is the last";
  EXPECT_THAT(std::string(tokens->Find(other, kNow + absl::Hours(24)).status().message()),
              HasSubstr("the token of operator bob ended on 2027-01-15"));
  for (const std::string& wrong :
       {std::string(), token + " ", token.substr(1), text.substr(10, 64)}) {
    EXPECT_EQ(tokens->Find(wrong, kNow).status().code(), absl::StatusCode::kUnauthenticated);
  }
}

TEST(TokensTest, ALineThatIsWrongIsNamed) {
  const std::string hash(64, 'a');
  EXPECT_THAT(Refusal("\nshort submitter alice -"), HasSubstr("line 2: must be SHA256 ROLE"));
  EXPECT_THAT(Refusal(hash + " submitter alice"), HasSubstr("line 1: must be SHA256 ROLE"));
  EXPECT_THAT(Refusal(hash + " worker node-1 -"),
              HasSubstr("must be viewer, submitter or operator"));
  EXPECT_THAT(Refusal(hash + " operator a/b -"), HasSubstr("the name of an operator: got \"a/b\""));
  EXPECT_THAT(Refusal(hash + " operator bob soon"), HasSubstr("a day such as 2027-01-31, or -"));
  EXPECT_THAT(Refusal(hash + " viewer eve -\n" + hash + " operator bob -"),
              HasSubstr("line 2: the same token again"));
  EXPECT_TRUE(Tokens::Parse("").ok());
}

}  // namespace
}  // namespace terrace
