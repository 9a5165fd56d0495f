// SPDX-License-Identifier: Apache-2.0
#include "base/tls/authority.h"

#include <arpa/inet.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/tls/openssl.h"
#include "base/utf8.h"

namespace terrace {
namespace {

constexpr absl::Duration kClocksDiffer = absl::Minutes(5);
constexpr int kSerialBytes = 16;
constexpr size_t kHostBytesMax = 253;
constexpr size_t kCommonNameBytesMax = 64;  // of X.509

absl::Status Failed(std::string_view what) {
  char reason[256] = "";
  if (const unsigned long error = ERR_get_error(); error != 0)
    ERR_error_string_n(error, reason, sizeof reason);
  ERR_clear_error();
  return absl::InternalError(absl::StrCat("OpenSSL could not ", Absl(what), ": ", reason));
}

bool IsAddress(const std::string& host) {
  unsigned char bytes[16];
  return inet_pton(AF_INET, host.c_str(), bytes) == 1 ||
         inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

absl::Status CheckHost(const std::string& host) {
  const auto may_be = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  };
  const bool is_name = !host.empty() && host.size() <= kHostBytesMax && host.front() != '-' &&
                       host.front() != '.' && std::all_of(host.begin(), host.end(), may_be);
  if (IsAddress(host) || is_name) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--host: got \"", CleanLine(host, kHostBytesMax),
      "\", must be a host name or an IP address, as clients and workers dial it, without a port"));
}

absl::StatusOr<std::string> PemOfKey(EVP_PKEY* key) {
  const Openssl<BIO> out(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_PKCS8PrivateKey(out.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1)
    return Failed("write a key");
  const char* data = nullptr;
  const long bytes = BIO_get_mem_data(out.get(), &data);
  return std::string(data, static_cast<size_t>(bytes));
}

absl::Status SetSerial(X509* certificate) {
  unsigned char bytes[kSerialBytes];
  if (RAND_bytes(bytes, sizeof bytes) != 1) return Failed("draw a serial number");
  bytes[0] = static_cast<unsigned char>((bytes[0] & 0x7f) | 0x40);  // positive, of full length
  BIGNUM* number = BN_bin2bn(bytes, sizeof bytes, nullptr);
  const bool set = number != nullptr &&
                   BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate)) != nullptr;
  BN_free(number);
  return set ? absl::OkStatus() : Failed("set a serial number");
}

absl::Status SetTimes(X509* certificate, absl::Time begin, absl::Time end) {
  const bool set =
      ASN1_TIME_set(X509_getm_notBefore(certificate), absl::ToTimeT(begin)) != nullptr &&
      ASN1_TIME_set(X509_getm_notAfter(certificate), absl::ToTimeT(end)) != nullptr;
  return set ? absl::OkStatus() : Failed("set the time of validity");
}

absl::Status SetCommonName(X509* certificate, const std::string& name) {
  const std::string text = CleanLine(name, kCommonNameBytesMax);
  const bool set =
      X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_UTF8,
                                 reinterpret_cast<const unsigned char*>(text.data()),
                                 static_cast<int>(text.size()), -1, 0) == 1;
  return set ? absl::OkStatus() : Failed(absl::StrCat("name a certificate \"", text, "\""));
}

// `value` as in OpenSSL's configuration files. Names are checked before: none holds a comma.
absl::Status AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const Openssl<X509_EXTENSION> extension(
      X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  if (extension == nullptr || X509_add_ext(certificate, extension.get(), -1) != 1)
    return Failed(absl::StrCat("add \"", value, "\" to a certificate"));
  return absl::OkStatus();
}

std::string AlternativeNames(const CertificateSubject& subject) {
  std::string names;
  const auto add = [&names](std::string_view kind, const std::string& value) {
    absl::StrAppend(&names, names.empty() ? "" : ",", Absl(kind), ":", value);
  };
  for (const Grant& grant : subject.grants) add("URI", UriOf(grant));
  for (const std::string& host : subject.hosts) add(IsAddress(host) ? "IP" : "DNS", host);
  return names;
}

// A new key, and a certificate of it that is not signed yet.
struct Draft {
  Openssl<EVP_PKEY> key;
  Openssl<X509> certificate;
};
absl::StatusOr<Draft> Begin(const std::string& name, absl::Time begin, absl::Time end) {
  Draft draft{.key = Openssl<EVP_PKEY>(EVP_EC_gen("P-256")),
              .certificate = Openssl<X509>(X509_new())};
  if (draft.key == nullptr || draft.certificate == nullptr) return Failed("make a key");
  X509* certificate = draft.certificate.get();
  if (X509_set_version(certificate, X509_VERSION_3) != 1 ||
      X509_set_pubkey(certificate, draft.key.get()) != 1) {
    return Failed("begin a certificate");
  }
  RETURN_IF_ERROR(SetSerial(certificate));
  RETURN_IF_ERROR(SetTimes(certificate, begin, end));
  RETURN_IF_ERROR(SetCommonName(certificate, name));
  return draft;
}

absl::StatusOr<KeyPair> Sign(const Draft& draft, const X509& issuer, EVP_PKEY* issuer_key) {
  X509* certificate = draft.certificate.get();
  if (X509_set_issuer_name(certificate, X509_get_subject_name(&issuer)) != 1 ||
      X509_sign(certificate, issuer_key, EVP_sha256()) == 0) {
    return Failed("sign a certificate");
  }
  ASSIGN_OR_RETURN(std::string key, PemOfKey(draft.key.get()));
  return KeyPair{.certificate = PemOf(*certificate), .key = std::move(key)};
}

}  // namespace

absl::StatusOr<KeyPair> MakeAuthority(const std::string& name, absl::Time now,
                                      absl::Duration lifetime) {
  ASSIGN_OR_RETURN(const Draft draft, Begin(name, now - kClocksDiffer, now + lifetime));
  X509* certificate = draft.certificate.get();
  RETURN_IF_ERROR(
      AddExtension(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE,pathlen:0"));
  RETURN_IF_ERROR(
      AddExtension(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign"));
  RETURN_IF_ERROR(AddExtension(certificate, certificate, NID_subject_key_identifier, "hash"));
  return Sign(draft, *certificate, draft.key.get());
}

absl::StatusOr<KeyPair> IssueCertificate(const KeyPair& authority,
                                         const CertificateSubject& subject, absl::Time now,
                                         absl::Duration lifetime) {
  for (const Grant& grant : subject.grants) RETURN_IF_ERROR(CheckGrant(grant));
  for (const std::string& host : subject.hosts) RETURN_IF_ERROR(CheckHost(host));
  if (subject.grants.empty() && subject.hosts.empty()) {
    return absl::InvalidArgumentError(
        "--host: a coordinator's certificate needs at least one name or address at which clients "
        "and workers dial it");
  }
  const Openssl<X509> issuer = CertificateIn(authority.certificate);
  const Openssl<EVP_PKEY> issuer_key = KeyIn(authority.key);
  if (issuer == nullptr || issuer_key == nullptr ||
      X509_check_private_key(issuer.get(), issuer_key.get()) != 1) {
    return absl::InvalidArgumentError(
        "the authority's key is not that of its certificate; name a folder that `terrace certs "
        "init` made");
  }
  if (EndOf(*issuer) <= now) {
    return absl::InvalidArgumentError(absl::StrCat("the authority ", SubjectOf(*issuer),
                                                   " has run out on ", DateText(EndOf(*issuer)),
                                                   "; make the next one with `terrace certs rotate "
                                                   "--authority`"));
  }
  ASSIGN_OR_RETURN(const Draft draft, Begin(subject.name, now - kClocksDiffer,
                                            std::min(now + lifetime, EndOf(*issuer))));
  X509* certificate = draft.certificate.get();
  RETURN_IF_ERROR(
      AddExtension(certificate, issuer.get(), NID_basic_constraints, "critical,CA:FALSE"));
  RETURN_IF_ERROR(
      AddExtension(certificate, issuer.get(), NID_key_usage, "critical,digitalSignature"));
  // A certificate without a host is not one of a server, so that nobody takes that of a person for
  // the coordinator's.
  RETURN_IF_ERROR(AddExtension(certificate, issuer.get(), NID_ext_key_usage,
                               subject.hosts.empty() ? "clientAuth" : "serverAuth,clientAuth"));
  RETURN_IF_ERROR(AddExtension(certificate, issuer.get(), NID_subject_key_identifier, "hash"));
  RETURN_IF_ERROR(
      AddExtension(certificate, issuer.get(), NID_authority_key_identifier, "keyid:always"));
  RETURN_IF_ERROR(
      AddExtension(certificate, issuer.get(), NID_subject_alt_name, AlternativeNames(subject)));
  return Sign(draft, *issuer, issuer_key.get());
}

absl::StatusOr<CertificateInfo> ReadCertificate(const std::string& pem) {
  const Openssl<X509> certificate = CertificateIn(pem);
  if (certificate == nullptr)
    return absl::InvalidArgumentError("it holds no certificate in PEM form");
  CertificateInfo info{.subject = {},
                       .issuer = IssuerOf(*certificate),
                       .begin = BeginOf(*certificate),
                       .end = EndOf(*certificate),
                       .is_authority = X509_check_ca(certificate.get()) == 1};
  const X509_NAME* subject = X509_get_subject_name(certificate.get());
  if (const int at = X509_NAME_get_index_by_NID(subject, NID_commonName, -1); at >= 0) {
    const ASN1_STRING* name = X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at));
    info.subject.name =
        CleanLine(std::string_view(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name)),
                                   static_cast<size_t>(ASN1_STRING_length(name))),
                  kCommonNameBytesMax);
  }
  const Openssl<GENERAL_NAMES> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate.get(), NID_subject_alt_name, nullptr, nullptr)));
  const int count = names == nullptr ? 0 : sk_GENERAL_NAME_num(names.get());
  for (int i = 0; i < count; ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    const auto text = [](const ASN1_STRING* string) {
      return std::string(reinterpret_cast<const char*>(ASN1_STRING_get0_data(string)),
                         static_cast<size_t>(ASN1_STRING_length(string)));
    };
    if (name->type == GEN_URI) {
      ASSIGN_OR_RETURN(std::optional<Grant> grant,
                       ParseGrant(text(name->d.uniformResourceIdentifier)));
      if (grant) info.subject.grants.push_back(*std::move(grant));
    } else if (name->type == GEN_DNS) {
      info.subject.hosts.push_back(CleanLine(text(name->d.dNSName), kHostBytesMax));
    } else if (name->type == GEN_IPADD) {
      const std::string bytes = text(name->d.iPAddress);
      if (bytes.size() != 4 && bytes.size() != 16) continue;
      char shown[INET6_ADDRSTRLEN] = "";
      inet_ntop(bytes.size() == 4 ? AF_INET : AF_INET6, bytes.data(), shown, sizeof shown);
      info.subject.hosts.emplace_back(shown);
    }
  }
  return info;
}

}  // namespace terrace
