// Owners of OpenSSL's objects, and what it says of its last failure.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace terrace {

struct OpensslFree {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(X509_STORE* store) const { X509_STORE_free(store); }
  void operator()(X509_STORE_CTX* context) const { X509_STORE_CTX_free(context); }
  void operator()(X509_EXTENSION* extension) const { X509_EXTENSION_free(extension); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(GENERAL_NAMES* names) const { GENERAL_NAMES_free(names); }
};
template <typename T>
using Openssl = std::unique_ptr<T, OpensslFree>;

// All certificates of a PEM text, in its order; empty where there is none.
std::vector<Openssl<X509>> CertificatesIn(const std::string& pem);
// The first one; null where there is none.
Openssl<X509> CertificateIn(const std::string& pem);
// Null where there is none, and for a key that asks for a password.
Openssl<EVP_PKEY> KeyIn(const std::string& pem);
std::string PemOf(const X509& certificate);

// "CN=alice", for people, in one line.
std::string SubjectOf(const X509& certificate);
std::string IssuerOf(const X509& certificate);
absl::Time BeginOf(const X509& certificate);
absl::Time EndOf(const X509& certificate);
// "2027-01-15 08:00 UTC".
std::string DateText(absl::Time time);

}  // namespace terrace
