// SPDX-License-Identifier: Apache-2.0
#include "base/tls_files.h"

#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

constexpr int64_t kPemBytesMax = 1 << 20;

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};

std::unique_ptr<BIO, Free> Reader(const std::string& pem) {
  return std::unique_ptr<BIO, Free>(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

// The first one of the file; null where there is none.
std::unique_ptr<X509, Free> CertificateOf(const std::string& pem) {
  return std::unique_ptr<X509, Free>(
      PEM_read_bio_X509(Reader(pem).get(), nullptr, nullptr, nullptr));
}

// Null also for a key that asks for a password.
std::unique_ptr<EVP_PKEY, Free> KeyOf(const std::string& pem) {
  const auto no_password = [](char*, int, int, void*) { return -1; };
  return std::unique_ptr<EVP_PKEY, Free>(
      PEM_read_bio_PrivateKey(Reader(pem).get(), nullptr, no_password, nullptr));
}

std::string Text(const ASN1_TIME* time) {
  tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return "a time that cannot be read";
  return absl::FormatTime("%Y-%m-%d %H:%M UTC", absl::FromTM(parts, absl::UTCTimeZone()),
                          absl::UTCTimeZone());
}

absl::Status CheckIsValid(const X509& certificate, const std::string& path, absl::Time now) {
  time_t seconds = absl::ToTimeT(now);
  const ASN1_TIME* begin = X509_get0_notBefore(&certificate);
  const ASN1_TIME* end = X509_get0_notAfter(&certificate);
  if (X509_cmp_time(end, &seconds) < 0) {
    return absl::InvalidArgumentError(absl::StrCat("--tls-cert: the certificate in ", path,
                                                   " has run out on ", Text(end),
                                                   "; name one that is valid now"));
  }
  if (X509_cmp_time(begin, &seconds) > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tls-cert: the certificate in ", path, " is valid from ", Text(begin),
                     " on only; name one that is valid now, or look at this machine's clock"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Read(std::string_view option, const std::string& path) {
  if (path.empty()) return "";
  absl::StatusOr<std::string> text = ReadTextFile(path, kPemBytesMax);
  if (text.ok()) return text;
  return absl::Status(text.status().code(),
                      absl::StrCat(std::string(option), ": ", text.status().message()));
}

absl::Status Holds(bool held, std::string_view option, const std::string& path,
                   std::string_view what) {
  if (held || path.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(option), ": ", path, " holds no ", std::string(what)));
}

}  // namespace

absl::StatusOr<TlsFiles> ReadTlsFiles(const TlsFiles& paths, absl::Time now) {
  TlsFiles files;
  ASSIGN_OR_RETURN(files.ca, Read("--tls-ca", paths.ca));
  ASSIGN_OR_RETURN(files.cert, Read("--tls-cert", paths.cert));
  ASSIGN_OR_RETURN(files.key, Read("--tls-key", paths.key));
  const std::unique_ptr<X509, Free> certificate = CertificateOf(files.cert);
  const std::unique_ptr<EVP_PKEY, Free> key = KeyOf(files.key);
  RETURN_IF_ERROR(
      Holds(certificate != nullptr, "--tls-cert", paths.cert, "certificate in PEM form"));
  RETURN_IF_ERROR(Holds(key != nullptr, "--tls-key", paths.key,
                        "private key in PEM form that can be read without a password"));
  RETURN_IF_ERROR(Holds(CertificateOf(files.ca) != nullptr, "--tls-ca", paths.ca,
                        "certificate of an authority in PEM form"));
  if (certificate == nullptr) return files;
  RETURN_IF_ERROR(CheckIsValid(*certificate, paths.cert, now));
  if (key != nullptr && X509_check_private_key(certificate.get(), key.get()) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tls-key: the key in ", paths.key, " is not that of the certificate in ",
                     paths.cert, "; name the two that were made together"));
  }
  return files;
}

}  // namespace terrace
