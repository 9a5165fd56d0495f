// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/credentials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace terrace {
namespace {

using testing::HasSubstr;

TEST(CredentialsTest, OffLoopbackNeedsTlsOrAWordThatItDoesNot) {
  ServeOptions options{.listen = "0.0.0.0:7070"};
  EXPECT_EQ(IsSecure(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.insecure = true;
  EXPECT_FALSE(IsSecure(options).value());
  EXPECT_FALSE(IsSecure(ServeOptions{.listen = "127.0.0.1:7070"}).value());
}

TEST(CredentialsTest, TheThreeFilesGoTogether) {
  ServeOptions options{.tls_cert = "cert.pem", .tls_key = "key.pem"};
  EXPECT_THAT(std::string(IsSecure(options).status().message()), HasSubstr("go together"));
  options.tls_ca = "ca.pem";
  EXPECT_TRUE(IsSecure(options).value()) << "also on loopback";
}

TEST(CredentialsTest, AMissingFileIsNamed) {
  const ServeOptions options{
      .tls_cert = "cert.pem", .tls_key = "key.pem", .tls_ca = "/absent/ca.pem"};
  Gatekeeper gate(/*is_secure=*/true);
  EXPECT_THAT(std::string(ServerTls::Make(options, gate).status().message()),
              HasSubstr("/absent/ca.pem"));
}

}  // namespace
}  // namespace terrace
