// Makes a certificate authority, and certificates that it signs: keys on the curve P-256, made and
// signed by OpenSSL.
//
// In: who and for how long. Out: PEM texts. Nothing is read or written. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/tls/identity.h"

namespace terrace {

struct KeyPair {
  std::string certificate;  // PEM
  std::string key;          // PEM
};

// What a certificate says. One without grants is a coordinator's: it names a server and permits no
// call.
struct CertificateSubject {
  std::string name;                // of people's reading: the common name
  std::vector<Grant> grants;       // whom it makes of its holder
  std::vector<std::string> hosts;  // names and addresses at which it is a server
};

// Valid from a few minutes before `now`, because clocks differ.
absl::StatusOr<KeyPair> MakeAuthority(const std::string& name, absl::Time now,
                                      absl::Duration lifetime);

// INVALID_ARGUMENT: a grant or host that cannot be, an authority that cannot sign (it is none, its
// key is another's, it has run out). It never outlives its authority.
absl::StatusOr<KeyPair> IssueCertificate(const KeyPair& authority,
                                         const CertificateSubject& subject, absl::Time now,
                                         absl::Duration lifetime);

// What a certificate of ours says, as it was issued. INVALID_ARGUMENT: it is none, or a grant in it
// cannot be read.
struct CertificateInfo {
  CertificateSubject subject;
  std::string issuer;
  absl::Time begin, end;
  bool is_authority = false;
};
absl::StatusOr<CertificateInfo> ReadCertificate(const std::string& pem);

}  // namespace terrace
