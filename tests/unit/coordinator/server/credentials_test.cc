// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/credentials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace terrace {
namespace {

using testing::HasSubstr;

TEST(CredentialsTest, OffLoopbackNeedsTlsOrAWordThatItDoesNot) {
  ServeOptions options{.listen = "0.0.0.0:7070"};
  EXPECT_EQ(MakeServerCredentials(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.insecure = true;
  EXPECT_TRUE(MakeServerCredentials(options).ok());
}

TEST(CredentialsTest, TheThreeFilesGoTogether) {
  const ServeOptions options{.tls_cert = "cert.pem", .tls_key = "key.pem"};
  EXPECT_THAT(std::string(MakeServerCredentials(options).status().message()),
              HasSubstr("go together"));
}

TEST(CredentialsTest, AMissingFileIsNamed) {
  const ServeOptions options{
      .tls_cert = "cert.pem", .tls_key = "key.pem", .tls_ca = "/absent/ca.pem"};
  EXPECT_THAT(std::string(MakeServerCredentials(options).status().message()),
              HasSubstr("/absent/ca.pem"));
}

}  // namespace
}  // namespace terrace
