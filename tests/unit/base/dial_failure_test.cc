// SPDX-License-Identifier: Apache-2.0
#include "base/dial_failure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace terrace {
namespace {

using testing::HasSubstr;

TEST(DialFailureTest, SaysWhatTheTwoSidesDisagreeAbout) {
  EXPECT_THAT(ExplainDialFailure("Connection refused", Dialed::kPlain),
              HasSubstr("Connection refused; start one with terrace-coordinator serve"));
  EXPECT_THAT(ExplainDialFailure("Socket closed", Dialed::kPlain), HasSubstr("wants TLS"));
  EXPECT_THAT(ExplainDialFailure("Socket closed", Dialed::kTls), HasSubstr("give --tls-cert"));
  EXPECT_THAT(ExplainDialFailure("Socket closed", Dialed::kTlsWithCertificate),
              HasSubstr("refused the certificate in --tls-cert"));
  EXPECT_THAT(ExplainDialFailure("routines::wrong version number", Dialed::kTls),
              HasSubstr("does not speak TLS"));
  EXPECT_THAT(ExplainDialFailure("certificate verify failed", Dialed::kTls),
              HasSubstr("not signed by the authority in --tls-ca, or has run out"));
  EXPECT_THAT(ExplainDialFailure("Peer name 10.0.0.7 is not in peer certificate", Dialed::kTls),
              HasSubstr("its certificate is for another name"));
  for (const Dialed dialed : {Dialed::kPlain, Dialed::kTls}) {
    EXPECT_THAT(ExplainDialFailure("Trying to connect an http1.x server", dialed),
                HasSubstr("--metrics-listen and --web-listen: name the address of its --listen"));
    EXPECT_THAT(ExplainDialFailure("Failed parsing HTTP/2", dialed),
                HasSubstr("something else listens there"));
  }
}

}  // namespace
}  // namespace terrace
