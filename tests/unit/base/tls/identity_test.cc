// SPDX-License-Identifier: Apache-2.0
#include "base/tls/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace terrace {
namespace {

using testing::HasSubstr;

TEST(IdentityTest, AGrantIsWhatItsUriSays) {
  for (const Grant& grant : {Grant{Role::kWorker, "node-1"}, Grant{Role::kViewer, "eve"},
                             Grant{Role::kSubmitter, "a.b@c"}, Grant{Role::kOperator, "root"},
                             Grant{Role::kWorker, "*"}}) {
    const auto parsed = ParseGrant(UriOf(grant));
    ASSERT_TRUE(parsed.ok() && parsed->has_value()) << UriOf(grant);
    EXPECT_EQ(**parsed, grant);
  }
  EXPECT_EQ(UriOf({Role::kSubmitter, "alice"}), "terrace://submitter/alice");
}

TEST(IdentityTest, UrisOfOthersGrantNothing) {
  for (const char* uri :
       {"spiffe://terrace/worker/node-1", "https://a", "", "Terrace://worker/a"}) {
    const auto parsed = ParseGrant(uri);
    ASSERT_TRUE(parsed.ok()) << uri;
    EXPECT_FALSE(parsed->has_value()) << uri;
  }
}

TEST(IdentityTest, UrisThatBeginAsOursAndSayNothingAreRefused) {
  const std::string with_zero = std::string("terrace://operator/a\0b", 22);
  for (const std::string& uri :
       {std::string("terrace://"), std::string("terrace://root/a"), std::string("terrace://worker"),
        std::string("terrace://worker/"), std::string("terrace://operator/*"),
        std::string("terrace://worker/../x"), std::string("terrace://worker/a/b"),
        std::string("terrace://worker/a b"), std::string("terrace://Worker/a"), with_zero,
        "terrace://worker/" + std::string(129, 'a')}) {
    EXPECT_EQ(ParseGrant(uri).status().code(), absl::StatusCode::kInvalidArgument) << uri;
  }
  EXPECT_THAT(std::string(ParseGrant("terrace://root/a").status().message()),
              HasSubstr("ROLE/NAME, with the role worker, viewer, submitter, operator"));
}

TEST(IdentityTest, ThePersonIsTheOneThatMayMost) {
  const Identity both{
      .grants = {{Role::kViewer, "v"}, {Role::kOperator, "o"}, {Role::kWorker, "w"}}};
  EXPECT_EQ(both.Person()->name, "o");
  EXPECT_FALSE((Identity{.grants = {{Role::kWorker, "w"}}}).Person().has_value());
  EXPECT_FALSE(Identity{}.Person().has_value());
  EXPECT_EQ(both.ToString(), "viewer v and operator o and worker w");
}

TEST(IdentityTest, AWorkerIsOneNameUnlessItSaysAny) {
  const Identity one{.grants = {{Role::kWorker, "node-1"}, {Role::kOperator, "node-2"}}};
  EXPECT_TRUE(one.IsWorker("node-1"));
  EXPECT_FALSE(one.IsWorker("node-2"));
  EXPECT_FALSE(one.IsWorker("node-11"));
  EXPECT_FALSE(one.IsWorker("*"));
  EXPECT_TRUE((Identity{.grants = {{Role::kWorker, "*"}}}).IsWorker("node-2"));
  EXPECT_FALSE((Identity{.grants = {{Role::kSubmitter, "*"}}}).IsWorker("node-2"));
}

}  // namespace
}  // namespace terrace
