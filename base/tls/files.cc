// SPDX-License-Identifier: Apache-2.0
#include "base/tls/files.h"

#include <cstdint>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/tls/openssl.h"

namespace terrace {
namespace {

constexpr int64_t kPemBytesMax = 1 << 20;

absl::Status CheckIsValid(const X509& certificate, const std::string& path, absl::Time now) {
  const absl::Time begin = BeginOf(certificate), end = EndOf(certificate);
  if (end < now) {
    return absl::InvalidArgumentError(absl::StrCat("--tls-cert: the certificate in ", path,
                                                   " has run out on ", DateText(end),
                                                   "; name one that is valid now"));
  }
  if (begin > now) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tls-cert: the certificate in ", path, " is valid from ", DateText(begin),
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
  const Openssl<X509> certificate = CertificateIn(files.cert);
  const Openssl<EVP_PKEY> key = KeyIn(files.key);
  RETURN_IF_ERROR(
      Holds(certificate != nullptr, "--tls-cert", paths.cert, "certificate in PEM form"));
  RETURN_IF_ERROR(Holds(key != nullptr, "--tls-key", paths.key,
                        "private key in PEM form that can be read without a password"));
  RETURN_IF_ERROR(Holds(CertificateIn(files.ca) != nullptr, "--tls-ca", paths.ca,
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
