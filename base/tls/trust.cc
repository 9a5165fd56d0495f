// SPDX-License-Identifier: Apache-2.0
#include "base/tls/trust.h"

#include <openssl/err.h>
#include <openssl/x509_vfy.h>

#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/tls/authority.h"

namespace terrace {
namespace {

constexpr std::array<std::string_view, 5> kProblemNames = {
    "unreadable", "wrong_authority", "expired", "not_yet_valid", "not_for_this"};

CertificateProblem ProblemOf(int error) {
  switch (error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return CertificateProblem::kExpired;
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return CertificateProblem::kNotYetValid;
    case X509_V_ERR_INVALID_PURPOSE:
      return CertificateProblem::kNotForThis;
    default:
      return CertificateProblem::kWrongAuthority;
  }
}

std::string Sentence(const X509& certificate, const std::string& authorities,
                     CertificateProblem problem, int error) {
  const std::string subject = SubjectOf(certificate);
  switch (problem) {
    case CertificateProblem::kExpired:
      return absl::StrCat("the certificate of ", subject, " ran out on ",
                          DateText(EndOf(certificate)),
                          "; make it anew with `terrace certs rotate`");
    case CertificateProblem::kNotYetValid:
      return absl::StrCat("the certificate of ", subject, " is valid from ",
                          DateText(BeginOf(certificate)),
                          " on only; look at the clocks of both machines");
    case CertificateProblem::kNotForThis:
      return absl::StrCat("the certificate of ", subject,
                          " is not for clients (extended key usage); make one with `terrace certs "
                          "issue`");
    default:
      return absl::StrCat("the certificate of ", subject, ", signed by ", IssuerOf(certificate),
                          ", is not signed by the authority that is trusted here (", authorities,
                          "): ", X509_verify_cert_error_string(error),
                          "; use a certificate that was issued with this cluster's authority");
  }
}

}  // namespace

std::string_view ProblemName(CertificateProblem problem) {
  return kProblemNames[static_cast<size_t>(problem)];
}

absl::StatusOr<Trust> Trust::FromPem(const std::string& authorities) {
  Openssl<X509_STORE> store(X509_STORE_new());
  std::string names;
  for (const Openssl<X509>& one : CertificatesIn(authorities)) {
    if (X509_STORE_add_cert(store.get(), one.get()) != 1) {
      ERR_clear_error();
      continue;  // the same one twice
    }
    const std::string name = SubjectOf(*one);
    if (names.find(name) == std::string::npos)
      absl::StrAppend(&names, names.empty() ? "" : ", ", name);
  }
  if (names.empty()) return absl::InvalidArgumentError("no authority's certificate is in it");
  return Trust(std::move(store), std::move(names));
}

absl::StatusOr<VerifiedPeer> Trust::Verify(const std::string& certificate, const std::string& chain,
                                           absl::Time now, CertificateProblem* problem) const {
  CertificateProblem ignored;
  CertificateProblem& found = problem == nullptr ? ignored : *problem;
  const Openssl<X509> peer = CertificateIn(certificate);
  if (peer == nullptr) {
    found = CertificateProblem::kUnreadable;
    return absl::UnauthenticatedError("the certificate cannot be read");
  }
  const std::vector<Openssl<X509>> others = CertificatesIn(chain);
  STACK_OF(X509)* untrusted = sk_X509_new_null();
  for (const Openssl<X509>& other : others) sk_X509_push(untrusted, other.get());
  const Openssl<X509_STORE_CTX> context(X509_STORE_CTX_new());
  X509_STORE_CTX_init(context.get(), store_.get(), peer.get(), untrusted);
  X509_STORE_CTX_set_purpose(context.get(), X509_PURPOSE_SSL_CLIENT);
  X509_STORE_CTX_set_time(context.get(), 0, absl::ToTimeT(now));
  const bool valid = X509_verify_cert(context.get()) == 1;
  const int error = X509_STORE_CTX_get_error(context.get());
  sk_X509_free(untrusted);
  ERR_clear_error();
  if (!valid) {
    found = ProblemOf(error);
    return absl::UnauthenticatedError(Sentence(*peer, names_, found, error));
  }
  absl::StatusOr<CertificateInfo> info = ReadCertificate(certificate);
  if (!info.ok()) {
    found = CertificateProblem::kUnreadable;
    return absl::UnauthenticatedError(
        absl::StrCat("the certificate of ", SubjectOf(*peer), ": ", info.status().message()));
  }
  return VerifiedPeer{.identity = {.grants = std::move(info->subject.grants)},
                      .subject = SubjectOf(*peer),
                      .begin = info->begin,
                      .end = info->end};
}

}  // namespace terrace
