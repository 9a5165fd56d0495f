// SPDX-License-Identifier: Apache-2.0
#include "base/tls/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>

#include "absl/strings/str_cat.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr int64_t kDay = 24 * 3600;

class TlsFilesTest : public testing::Test {
 protected:
  TlsFilesTest() {
    std::filesystem::create_directories(folder_);
    Make("a", 0, 10 * kDay);
    Make("b", 0, 10 * kDay);
  }
  ~TlsFilesTest() override { std::filesystem::remove_all(folder_); }

  // NAME.pem, signed by itself and valid between the seconds from now on, and its NAME.key.
  void Make(const std::string& name, int64_t begin, int64_t end) const {
    const std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
    const std::unique_ptr<X509, void (*)(X509*)> certificate(X509_new(), X509_free);
    time_t now = absl::ToTimeT(now_);
    X509_time_adj_ex(X509_getm_notBefore(certificate.get()), 0, begin, &now);
    X509_time_adj_ex(X509_getm_notAfter(certificate.get()), 0, end, &now);
    X509_set_pubkey(certificate.get(), key.get());
    X509_sign(certificate.get(), key.get(), EVP_sha256());
    Write(name + ".pem", [&](FILE* file) { return PEM_write_X509(file, certificate.get()); });
    Write(name + ".key", [&](FILE* file) {
      return PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    });
  }

  template <typename Writer>
  void Write(const std::string& name, Writer writer) const {
    FILE* file = std::fopen(Path(name).c_str(), "w");
    ASSERT_NE(file, nullptr);
    EXPECT_EQ(writer(file), 1);
    EXPECT_EQ(std::fclose(file), 0);
  }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  absl::StatusOr<TlsFiles> Read(const std::string& cert, const std::string& key) const {
    return ReadTlsFiles({Path(cert), Path(key), Path("a.pem")}, now_);
  }
  std::string Refusal(const std::string& cert, const std::string& key) const {
    const absl::Status status = Read(cert, key).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }

  const std::string folder_ = absl::StrCat(testing::TempDir(), "/tls_files_test.", getpid());
  const absl::Time now_ = absl::FromUnixSeconds(1'800'000'000);  // 2027-01-15 08:00 UTC
};

TEST_F(TlsFilesTest, AreReadWhereTheyFit) {
  const absl::StatusOr<TlsFiles> files = Read("a.pem", "a.key");
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_THAT(files->cert, HasSubstr("BEGIN CERTIFICATE"));
  EXPECT_THAT(files->key, HasSubstr("PRIVATE KEY"));
  EXPECT_EQ(files->ca, files->cert);
  // Who has no certificate still knows whom to trust.
  const absl::StatusOr<TlsFiles> authority = ReadTlsFiles({.ca = Path("a.pem")}, now_);
  ASSERT_TRUE(authority.ok()) << authority.status();
  EXPECT_EQ(authority->key, "");
}

TEST_F(TlsFilesTest, AKeyOfAnotherCertificateIsRefused) {
  EXPECT_EQ(
      Refusal("a.pem", "b.key"),
      absl::StrCat("--tls-key: the key in ", Path("b.key"), " is not that of the certificate in ",
                   Path("a.pem"), "; name the two that were made together"));
}

TEST_F(TlsFilesTest, ACertificateThatIsNotValidNowIsRefused) {
  Make("old", -10 * kDay, -kDay);
  EXPECT_THAT(Refusal("old.pem", "old.key"), HasSubstr("has run out on 2027-01-14 08:00 UTC"));
  Make("early", kDay, 10 * kDay);
  EXPECT_THAT(Refusal("early.pem", "early.key"),
              HasSubstr("is valid from 2027-01-16 08:00 UTC on only"));
}

TEST_F(TlsFilesTest, FilesThatHoldSomethingElseAreNamedWithTheirOption) {
  EXPECT_THAT(Refusal("a.key", "a.key"), HasSubstr("--tls-cert: " + Path("a.key") + " holds no"));
  EXPECT_THAT(Refusal("a.pem", "a.pem"), HasSubstr("--tls-key: " + Path("a.pem") + " holds no"));
  std::ofstream(Path("text")) << "no certificate\n";
  EXPECT_THAT(std::string(ReadTlsFiles({.ca = Path("text")}, now_).status().message()),
              HasSubstr("--tls-ca: " + Path("text") + " holds no certificate"));
  EXPECT_EQ(ReadTlsFiles({.ca = Path("absent")}, now_).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace terrace
