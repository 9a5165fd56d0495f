// SPDX-License-Identifier: Apache-2.0
#include "base/tls/openssl.h"

#include <openssl/err.h>
#include <openssl/pem.h>

#include <ctime>

#include "base/utf8.h"

namespace terrace {
namespace {

constexpr size_t kSubjectBytesMax = 200;

Openssl<BIO> Reader(const std::string& pem) {
  return Openssl<BIO>(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

std::string TextIn(BIO* bio) {
  const char* data = nullptr;
  const long bytes = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<size_t>(bytes));
}

std::string NameText(const X509_NAME* name) {
  const Openssl<BIO> out(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(out.get(), name, 0, XN_FLAG_RFC2253);
  return CleanLine(TextIn(out.get()), kSubjectBytesMax);
}

absl::Time TimeOf(const ASN1_TIME* time) {
  tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

}  // namespace

std::vector<Openssl<X509>> CertificatesIn(const std::string& pem) {
  std::vector<Openssl<X509>> certificates;
  const Openssl<BIO> reader = Reader(pem);
  while (X509* one = PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr))
    certificates.emplace_back(one);
  ERR_clear_error();  // the end of the text is an error there
  return certificates;
}

Openssl<X509> CertificateIn(const std::string& pem) {
  Openssl<X509> certificate(PEM_read_bio_X509(Reader(pem).get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  return certificate;
}

Openssl<EVP_PKEY> KeyIn(const std::string& pem) {
  const auto no_password = [](char*, int, int, void*) { return -1; };
  Openssl<EVP_PKEY> key(PEM_read_bio_PrivateKey(Reader(pem).get(), nullptr, no_password, nullptr));
  ERR_clear_error();
  return key;
}

std::string PemOf(const X509& certificate) {
  const Openssl<BIO> out(BIO_new(BIO_s_mem()));
  PEM_write_bio_X509(out.get(), &certificate);
  return TextIn(out.get());
}

std::string SubjectOf(const X509& certificate) {
  return NameText(X509_get_subject_name(&certificate));
}
std::string IssuerOf(const X509& certificate) {
  return NameText(X509_get_issuer_name(&certificate));
}
absl::Time BeginOf(const X509& certificate) { return TimeOf(X509_get0_notBefore(&certificate)); }
absl::Time EndOf(const X509& certificate) { return TimeOf(X509_get0_notAfter(&certificate)); }

std::string DateText(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M UTC", time, absl::UTCTimeZone());
}

}  // namespace terrace
