// The authorities whose certificates are believed, and whom a peer's certificate makes of it.
//
// The check is OpenSSL's (chain, signature, validity, purpose); what is ours is the sentence that
// says why one is refused. Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/tls/identity.h"
#include "base/tls/openssl.h"

namespace terrace {

// Why a certificate is refused, as metrics name it.
enum class CertificateProblem { kUnreadable, kWrongAuthority, kExpired, kNotYetValid, kNotForThis };
std::string_view ProblemName(CertificateProblem problem);  // "wrong_authority"

struct VerifiedPeer {
  Identity identity;    // without grants: the certificate names no role
  std::string subject;  // "CN=alice"
  absl::Time begin, end;
};

class Trust {
 public:
  // INVALID_ARGUMENT: no certificate is in it.
  static absl::StatusOr<Trust> FromPem(const std::string& authorities);

  // `certificate` and `chain`, what was sent beside it, are PEM. UNAUTHENTICATED, with a sentence
  // that names the certificate, and in `problem`, if not null, what is wrong.
  absl::StatusOr<VerifiedPeer> Verify(const std::string& certificate, const std::string& chain,
                                      absl::Time now, CertificateProblem* problem = nullptr) const;
  // "CN=Terrace authority", or several, for people.
  const std::string& names() const { return names_; }

 private:
  Trust(Openssl<X509_STORE> store, std::string names)
      : store_(std::move(store)), names_(std::move(names)) {}

  Openssl<X509_STORE> store_;
  std::string names_;
};

}  // namespace terrace
