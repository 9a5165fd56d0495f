// A folder with a certificate authority and the certificates that it signed: ca.pem, ca.key,
// ROLE-NAME.pem and ROLE-NAME.key. Keys are readable by their owner only.
//
// ca.pem holds the authority that signs first, then those before it that are still trusted. Each
// call holds a lock of the folder, and replaces files by renaming.
//
// Used by one thread.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/tls/authority.h"
#include "base/tls/tokens.h"

namespace terrace {

// A certificate and its files.
struct CertificateFile {
  std::string certificate_path, key_path;
  CertificateInfo info;
  std::string trouble;  // empty: it is valid, and its authority is trusted
};

class CertificateFolder {
 public:
  CertificateFolder(std::string path, absl::Time now) : path_(std::move(path)), now_(now) {}

  // ALREADY_EXISTS: the folder has an authority.
  absl::StatusOr<CertificateFile> Init(const std::string& name, absl::Duration lifetime) const;
  // ALREADY_EXISTS: there is one of that role and name.
  absl::StatusOr<CertificateFile> Issue(const std::string& role, const CertificateSubject& subject,
                                        absl::Duration lifetime) const;
  // A new key and certificate that says the same. `file` is a path, or its name in the folder.
  // Without a lifetime it is valid for as many days as the one before.
  absl::StatusOr<CertificateFile> Rotate(const std::string& file,
                                         std::optional<absl::Duration> lifetime) const;
  // The next authority: it signs from now on, and those before it stay trusted.
  absl::StatusOr<CertificateFile> RotateAuthority(absl::Duration lifetime) const;
  // Only the authority that signs stays trusted. FAILED_PRECONDITION, with their names, while
  // certificates in the folder are signed by another.
  absl::StatusOr<CertificateFile> ForgetOldAuthorities() const;
  // Of the folder, by name; the authority first.
  absl::StatusOr<std::vector<CertificateFile>> List() const;

 private:
  absl::StatusOr<KeyPair> Authority() const;
  absl::StatusOr<CertificateFile> Describe(const std::string& certificate_path) const;
  std::string In(const std::string& name) const { return path_ + "/" + name; }

  const std::string path_;
  const absl::Time now_;
};

// A new token, whose hash is added to the file at `path`, for its owner only where there is none.
// INVALID_ARGUMENT: a name that cannot be, or a file that is none of tokens.
absl::StatusOr<std::string> AddToken(const std::string& path, const TokenHolder& holder);

}  // namespace terrace
