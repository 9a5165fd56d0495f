// SPDX-License-Identifier: Apache-2.0
#include "base/tls/authority.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/tls/openssl.h"
#include "base/tls/trust.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr absl::Duration kDay = absl::Hours(24);

class AuthorityTest : public testing::Test {
 protected:
  KeyPair Issue(const CertificateSubject& subject, absl::Duration lifetime = kDay) const {
    auto issued = IssueCertificate(authority_, subject, now_, lifetime);
    EXPECT_TRUE(issued.ok()) << issued.status();
    return issued.ok() ? *issued : KeyPair();
  }
  std::string Refusal(const CertificateSubject& subject) const {
    const auto issued = IssueCertificate(authority_, subject, now_, kDay);
    EXPECT_EQ(issued.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(issued.status().message());
  }
  // What is wrong with a certificate at a time.
  std::pair<CertificateProblem, std::string> Problem(const std::string& certificate,
                                                     absl::Time time) const {
    CertificateProblem problem = CertificateProblem::kUnreadable;
    const auto verified =
        Trust::FromPem(authority_.certificate)->Verify(certificate, "", time, &problem);
    EXPECT_EQ(verified.status().code(), absl::StatusCode::kUnauthenticated);
    return {problem, std::string(verified.status().message())};
  }

  const absl::Time now_ = absl::FromUnixSeconds(1'800'000'000);  // 2027-01-15 08:00 UTC
  const KeyPair authority_ = *MakeAuthority("here", now_, 10 * kDay);
  const CertificateSubject alice_ = {
      .name = "alice", .grants = {{Role::kSubmitter, "alice"}}, .hosts = {}};
};

TEST_F(AuthorityTest, ACertificateSaysWhatItWasIssuedFor) {
  const CertificateSubject subject = {
      .name = "node-1",
      .grants = {{Role::kWorker, "node-1"}, {Role::kViewer, "monitor"}},
      .hosts = {"node-1.example", "10.0.0.7", "fd00::1"}};
  const KeyPair issued = Issue(subject);
  const auto info = ReadCertificate(issued.certificate);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->subject.name, "node-1");
  EXPECT_EQ(info->subject.grants, subject.grants);
  EXPECT_EQ(info->subject.hosts, subject.hosts);
  EXPECT_EQ(info->issuer, "CN=here");
  EXPECT_EQ(info->end, now_ + kDay);
  EXPECT_LT(info->begin, now_);
  EXPECT_FALSE(info->is_authority);
  EXPECT_TRUE(ReadCertificate(authority_.certificate)->is_authority);
  const Openssl<X509> certificate = CertificateIn(issued.certificate);
  EXPECT_EQ(X509_check_private_key(certificate.get(), KeyIn(issued.key).get()), 1);
}

TEST_F(AuthorityTest, OnlyWhoHasAHostIsAServer) {
  const auto is_server = [](const KeyPair& pair) {
    return X509_check_purpose(CertificateIn(pair.certificate).get(), X509_PURPOSE_SSL_SERVER, 0);
  };
  EXPECT_EQ(is_server(Issue(alice_)), 0);
  EXPECT_EQ(is_server(Issue({.name = "head", .grants = {}, .hosts = {"head"}})), 1);
}

TEST_F(AuthorityTest, ItsOwnAreBelievedAndSayWhoTheyAre) {
  const auto peer =
      Trust::FromPem(authority_.certificate)->Verify(Issue(alice_).certificate, "", now_);
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_THAT(peer->identity.grants, ElementsAre(Grant{Role::kSubmitter, "alice"}));
  EXPECT_EQ(peer->subject, "CN=alice");
}

TEST_F(AuthorityTest, ARefusalSaysWhatIsWrong) {
  const std::string certificate = Issue(alice_).certificate;
  const auto [expired, told] = Problem(certificate, now_ + 2 * kDay);
  EXPECT_EQ(expired, CertificateProblem::kExpired);
  EXPECT_THAT(told, HasSubstr("CN=alice ran out on 2027-01-16 08:00 UTC"));
  EXPECT_EQ(Problem(certificate, now_ - kDay).first, CertificateProblem::kNotYetValid);

  // Of the same name, but another key.
  const KeyPair other = *MakeAuthority("here", now_, 10 * kDay);
  const auto foreign = IssueCertificate(other, alice_, now_, kDay);
  const auto [problem, sentence] = Problem(foreign->certificate, now_);
  EXPECT_EQ(problem, CertificateProblem::kWrongAuthority);
  EXPECT_THAT(sentence, HasSubstr("not signed by the authority that is trusted here (CN=here)"));

  // Who holds a certificate cannot sign others.
  const KeyPair holder = Issue(alice_);
  const auto forged = IssueCertificate(
      holder, {.name = "x", .grants = {{Role::kOperator, "x"}}, .hosts = {}}, now_, kDay);
  ASSERT_TRUE(forged.ok());
  CertificateProblem chain = CertificateProblem::kUnreadable;
  EXPECT_FALSE(Trust::FromPem(authority_.certificate)
                   ->Verify(forged->certificate, holder.certificate, now_, &chain)
                   .ok());
  EXPECT_EQ(chain, CertificateProblem::kWrongAuthority);
}

TEST_F(AuthorityTest, WhatItDoesNotSignIsTold) {
  EXPECT_THAT(Refusal({.name = "x", .grants = {{Role::kOperator, "a/b"}}, .hosts = {}}),
              HasSubstr("the name of an operator: got \"a/b\""));
  EXPECT_THAT(Refusal({.name = "x", .grants = {}, .hosts = {"a,DNS:b"}}),
              HasSubstr("--host: got \"a,DNS:b\""));
  EXPECT_THAT(Refusal({.name = "x", .grants = {}, .hosts = {}}), HasSubstr("needs at least one"));
  const auto late = IssueCertificate(authority_, alice_, now_ + 11 * kDay, kDay);
  EXPECT_THAT(std::string(late.status().message()), HasSubstr("has run out on 2027-01-25"));
  const auto mixed =
      IssueCertificate({authority_.certificate, Issue(alice_).key}, alice_, now_, kDay);
  EXPECT_THAT(std::string(mixed.status().message()), HasSubstr("is not that of its certificate"));
}

TEST_F(AuthorityTest, NothingOutlivesIt) {
  EXPECT_EQ(ReadCertificate(Issue(alice_, 100 * kDay).certificate)->end, now_ + 10 * kDay);
}

TEST_F(AuthorityTest, TheOneBeforeItIsTrustedBesideIt) {
  const KeyPair next = *MakeAuthority("here", now_, 10 * kDay);
  const auto both = Trust::FromPem(next.certificate + authority_.certificate);
  ASSERT_TRUE(both.ok());
  const auto newer = IssueCertificate(next, alice_, now_, kDay);
  EXPECT_TRUE(both->Verify(Issue(alice_).certificate, "", now_).ok());
  EXPECT_TRUE(both->Verify(newer->certificate, "", now_).ok());
  EXPECT_FALSE(Trust::FromPem("no certificate").ok());
}

}  // namespace
}  // namespace terrace
