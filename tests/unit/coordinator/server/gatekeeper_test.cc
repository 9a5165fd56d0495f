// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/gatekeeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/tls/authority.h"
#include "proto/unknown_call.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kDay = absl::Hours(24);
constexpr char kGet[] = "/terrace.v1.JobService/Get";

class GatekeeperTest : public testing::Test {
 protected:
  GatekeeperTest() { EXPECT_TRUE(gate_.SetAuthorities(authority_.certificate).ok()); }

  std::string Certificate(Role role, const std::string& name) const {
    return IssueCertificate(authority_, {.name = name, .grants = {{role, name}}, .hosts = {}}, now_,
                            kDay)
        ->certificate;
  }
  absl::Status Admit(const std::string& path, const std::string& certificate, absl::Time time) {
    return gate_.Admit(
        path, {.certificate = certificate, .chain = {}, .authorization = {}, .peer = {}}, time);
  }
  // The call is refused with this word, and counted.
  void Refused(Refusal why, const char* word, const absl::Status& status) {
    EXPECT_EQ(gate_.refused(why), 1) << RefusalName(why);
    EXPECT_THAT(std::string(status.message()), HasSubstr(word));
  }

  const absl::Time now_ = absl::FromUnixSeconds(1'800'000'000);
  const KeyPair authority_ = *MakeAuthority("here", now_, 10 * kDay);
  Gatekeeper gate_{/*is_secure=*/true};
};

TEST_F(GatekeeperTest, EachRefusalHasItsReasonSentenceAndCount) {
  const std::string eve = Certificate(Role::kViewer, "eve");
  EXPECT_TRUE(Admit(kGet, eve, now_).ok());
  Refused(Refusal::kNoCertificate, "give --tls-cert and --tls-key", Admit(kGet, "", now_));
  Refused(Refusal::kUnreadable, "cannot be read", Admit(kGet, "no certificate", now_));
  Refused(Refusal::kExpired, "CN=eve ran out on", Admit(kGet, eve, now_ + 2 * kDay));
  Refused(Refusal::kNotYetValid, "valid from", Admit(kGet, eve, now_ - kDay));
  const KeyPair other = *MakeAuthority("elsewhere", now_, kDay);
  Refused(
      Refusal::kWrongAuthority, "signed by CN=elsewhere",
      Admit(kGet,
            IssueCertificate(
                other, {.name = "eve", .grants = {{Role::kViewer, "eve"}}, .hosts = {}}, now_, kDay)
                ->certificate,
            now_));
  Refused(Refusal::kNoRole, "names no role",
          Admit(kGet,
                IssueCertificate(authority_, {.name = "head", .grants = {}, .hosts = {"head"}},
                                 now_, kDay)
                    ->certificate,
                now_));
  Refused(Refusal::kRole, "viewer eve may not Cancel: a submitter or an operator may",
          Admit("/terrace.v1.JobService/Cancel", eve, now_));
}

TEST_F(GatekeeperTest, WhatIsRememberedOfACertificateEndsWithItAndWithItsAuthority) {
  const std::string eve = Certificate(Role::kViewer, "eve");
  EXPECT_TRUE(Admit(kGet, eve, now_).ok());
  EXPECT_EQ(Admit(kGet, eve, now_ + 2 * kDay).code(), absl::StatusCode::kUnauthenticated);
  EXPECT_TRUE(Admit(kGet, eve, now_).ok());
  ASSERT_TRUE(gate_.SetAuthorities(MakeAuthority("next", now_, kDay)->certificate).ok());
  EXPECT_EQ(Admit(kGet, eve, now_).code(), absl::StatusCode::kUnauthenticated);
  EXPECT_FALSE(gate_.SetAuthorities("nothing").ok());
}

TEST_F(GatekeeperTest, ATokenCountsBeforeACertificate) {
  const std::string token = *MakeToken();
  const auto admit = [&](const std::string& authorization) {
    return gate_.Admit("/terrace.v1.JobService/Submit",
                       {.certificate = Certificate(Role::kViewer, "eve"),
                        .chain = {},
                        .authorization = authorization,
                        .peer = {}},
                       now_);
  };
  Refused(Refusal::kToken, "the token is not in the coordinator's --tokens",
          admit("Bearer " + token));
  gate_.SetTokens(*Tokens::Parse(TokenLine(token, {.grant = {Role::kSubmitter, "alice"}})));
  EXPECT_TRUE(admit("Bearer " + token).ok());
  EXPECT_FALSE(admit("Bearer " + token + "0").ok());
  EXPECT_EQ(admit("").code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(GatekeeperTest, ACallThatThereIsNotIsSaidToWhoIsKnown) {
  const absl::Status status =
      Admit("/terrace.v1.JobService/Destroy", Certificate(Role::kOperator, "bob"), now_);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(status.message(), kUnknownCall);
  EXPECT_EQ(Admit("/terrace.v1.JobService/Destroy", "", now_).code(),
            absl::StatusCode::kUnauthenticated);
}

TEST_F(GatekeeperTest, WithoutTlsNobodyIsAsked) {
  Gatekeeper open(/*is_secure=*/false);
  Refusal why;
  const auto caller =
      open.Identify({.certificate = {}, .chain = {}, .authorization = {}, .peer = "p"}, now_, &why);
  ASSERT_TRUE(caller.ok());
  EXPECT_TRUE(caller->is_anybody());
  EXPECT_EQ(caller->User(), "");
  EXPECT_EQ(caller->ToString(), "p");
}

}  // namespace
}  // namespace terrace
