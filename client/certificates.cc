// SPDX-License-Identifier: Apache-2.0
#include "client/certificates.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/tls/openssl.h"
#include "base/tls/trust.h"

namespace terrace {
namespace {

constexpr int64_t kPemBytesMax = 1 << 20;
constexpr int64_t kLockMs = 10'000;
constexpr char kAuthority[] = "ca.pem";
constexpr char kAuthorityKey[] = "ca.key";

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

// The file appears whole, with its mode from the beginning.
absl::Status Replace(const std::string& path, const std::string& text, mode_t mode) {
  const std::string part = path + ".part";
  unlink(part.c_str());
  const UniqueFd fd(open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (!fd.valid()) return FileError(errno, "create", part);
  fchmod(fd.get(), mode);  // whatever the umask is
  RETURN_IF_ERROR(WriteAll(fd, std::as_bytes(std::span(text)), part));
  RETURN_IF_ERROR(SyncFile(fd, part));
  return Rename(part, path);
}

absl::Status Write(const std::string& folder, const std::string& certificate_path,
                   const std::string& key_path, const KeyPair& pair) {
  RETURN_IF_ERROR(Replace(key_path, pair.key, 0600));
  RETURN_IF_ERROR(Replace(certificate_path, pair.certificate, 0644));
  return SyncDirectory(folder);
}

std::string KeyPathOf(const std::string& certificate_path) {
  return std::filesystem::path(certificate_path).replace_extension(".key").string();
}

absl::Status CheckNew(const std::string& path, std::string_view way_out) {
  if (!Exists(path)) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(path, " exists already; ", Absl(way_out)));
}

std::string FirstOf(const std::string& pem) {
  const Openssl<X509> first = CertificateIn(pem);
  return first == nullptr ? "" : PemOf(*first);
}

// In whole days: a certificate begins a little before it was made.
absl::Duration LifetimeOf(const CertificateInfo& info) {
  const absl::Duration valid = info.end - info.begin;
  const absl::Duration days = absl::Trunc(valid, absl::Hours(24));
  return days > absl::ZeroDuration() ? days : valid;
}

}  // namespace

absl::StatusOr<KeyPair> CertificateFolder::Authority() const {
  KeyPair authority;
  if (!Exists(In(kAuthority))) {
    return absl::NotFoundError(absl::StrCat("there is no authority in ", path_,
                                            "; make one with `terrace certs init --dir ", path_,
                                            "`, or name its folder with --dir"));
  }
  ASSIGN_OR_RETURN(authority.certificate, ReadTextFile(In(kAuthority), kPemBytesMax));
  ASSIGN_OR_RETURN(authority.key, ReadTextFile(In(kAuthorityKey), kPemBytesMax));
  return authority;
}

absl::StatusOr<CertificateFile> CertificateFolder::Describe(
    const std::string& certificate_path) const {
  CertificateFile file{.certificate_path = certificate_path,
                       .key_path = KeyPathOf(certificate_path),
                       .info = {},
                       .trouble = {}};
  ASSIGN_OR_RETURN(const std::string pem, ReadTextFile(certificate_path, kPemBytesMax));
  absl::StatusOr<CertificateInfo> info = ReadCertificate(pem);
  if (!info.ok()) {
    return absl::Status(info.status().code(),
                        absl::StrCat(certificate_path, ": ", info.status().message()));
  }
  file.info = *std::move(info);
  ASSIGN_OR_RETURN(const std::string authorities, ReadTextFile(In(kAuthority), kPemBytesMax));
  ASSIGN_OR_RETURN(const Trust trust, Trust::FromPem(authorities));
  if (file.info.is_authority) {
    if (file.info.end < now_) file.trouble = absl::StrCat("ran out on ", DateText(file.info.end));
    return file;
  }
  const auto verified = trust.Verify(pem, "", now_);
  if (!verified.ok()) file.trouble = std::string(verified.status().message());
  return file;
}

absl::StatusOr<CertificateFile> CertificateFolder::Init(const std::string& name,
                                                        absl::Duration lifetime) const {
  RETURN_IF_ERROR(MakeDirectories(path_));
  ASSIGN_OR_RETURN(const UniqueFd lock, LockFile(In(".lock"), kLockMs));
  for (const char* file : {kAuthority, kAuthorityKey}) {
    RETURN_IF_ERROR(CheckNew(In(file),
                             "take another --dir, or make the next authority there with "
                             "`terrace certs rotate --authority`"));
  }
  if (chmod(path_.c_str(), 0700) != 0) return FileError(errno, "change the mode of", path_);
  ASSIGN_OR_RETURN(const KeyPair authority, MakeAuthority(name, now_, lifetime));
  RETURN_IF_ERROR(Write(path_, In(kAuthority), In(kAuthorityKey), authority));
  return Describe(In(kAuthority));
}

absl::StatusOr<CertificateFile> CertificateFolder::Issue(const std::string& role,
                                                         const CertificateSubject& subject,
                                                         absl::Duration lifetime) const {
  ASSIGN_OR_RETURN(const KeyPair authority, Authority());
  ASSIGN_OR_RETURN(const UniqueFd lock, LockFile(In(".lock"), kLockMs));
  const bool is_named = !subject.grants.empty() && subject.grants.front().name != kAnyName;
  ASSIGN_OR_RETURN(const KeyPair issued, IssueCertificate(authority, subject, now_, lifetime));
  const std::string stem = is_named ? absl::StrCat(role, "-", subject.grants.front().name) : role;
  const std::string path = In(stem + ".pem");
  RETURN_IF_ERROR(CheckNew(
      path, absl::StrCat("make it anew with `terrace certs rotate ", stem, "`, or remove it")));
  RETURN_IF_ERROR(Write(path_, path, KeyPathOf(path), issued));
  return Describe(path);
}

absl::StatusOr<CertificateFile> CertificateFolder::Rotate(
    const std::string& file, std::optional<absl::Duration> lifetime) const {
  ASSIGN_OR_RETURN(const KeyPair authority, Authority());
  ASSIGN_OR_RETURN(const UniqueFd lock, LockFile(In(".lock"), kLockMs));
  std::string path = file.find('/') == std::string::npos ? In(file) : file;
  if (!path.ends_with(".pem")) path += ".pem";
  ASSIGN_OR_RETURN(const std::string pem, ReadTextFile(path, kPemBytesMax));
  const absl::StatusOr<CertificateInfo> before = ReadCertificate(pem);
  if (!before.ok()) {
    return absl::Status(before.status().code(),
                        absl::StrCat(path, ": ", before.status().message()));
  }
  if (before->is_authority) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " is an authority; make the next one with `terrace certs rotate --authority`"));
  }
  ASSIGN_OR_RETURN(const KeyPair next, IssueCertificate(authority, before->subject, now_,
                                                        lifetime.value_or(LifetimeOf(*before))));
  RETURN_IF_ERROR(Write(std::filesystem::path(path).parent_path(), path, KeyPathOf(path), next));
  return Describe(path);
}

absl::StatusOr<CertificateFile> CertificateFolder::RotateAuthority(absl::Duration lifetime) const {
  ASSIGN_OR_RETURN(const KeyPair before, Authority());
  ASSIGN_OR_RETURN(const UniqueFd lock, LockFile(In(".lock"), kLockMs));
  ASSIGN_OR_RETURN(const CertificateInfo info, ReadCertificate(before.certificate));
  ASSIGN_OR_RETURN(KeyPair next, MakeAuthority(info.subject.name, now_, lifetime));
  next.certificate += before.certificate;
  RETURN_IF_ERROR(Write(path_, In(kAuthority), In(kAuthorityKey), next));
  return Describe(In(kAuthority));
}

absl::StatusOr<CertificateFile> CertificateFolder::ForgetOldAuthorities() const {
  ASSIGN_OR_RETURN(const KeyPair authority, Authority());
  ASSIGN_OR_RETURN(const UniqueFd lock, LockFile(In(".lock"), kLockMs));
  const std::string newest = FirstOf(authority.certificate);
  ASSIGN_OR_RETURN(const Trust trust, Trust::FromPem(newest));
  ASSIGN_OR_RETURN(const std::vector<CertificateFile> files, List());
  std::vector<std::string> old;
  for (const CertificateFile& file : files) {
    if (file.info.is_authority || !file.trouble.empty()) continue;
    ASSIGN_OR_RETURN(const std::string pem, ReadTextFile(file.certificate_path, kPemBytesMax));
    if (!trust.Verify(pem, "", now_).ok()) old.push_back(file.certificate_path);
  }
  if (!old.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "these are signed by an authority before the newest: ", absl::StrJoin(old, ", "),
        "; make them anew with `terrace certs rotate --all` and put them where they are used "
        "first"));
  }
  RETURN_IF_ERROR(Replace(In(kAuthority), newest, 0644));
  RETURN_IF_ERROR(SyncDirectory(path_));
  return Describe(In(kAuthority));
}

absl::StatusOr<std::vector<CertificateFile>> CertificateFolder::List() const {
  RETURN_IF_ERROR(Authority().status());
  std::vector<std::string> paths;
  std::error_code error;
  for (std::filesystem::directory_iterator it(path_, error), end; !error && it != end;
       it.increment(error)) {
    if (it->path().extension() == ".pem" && it->path().filename() != kAuthority)
      paths.push_back(it->path().string());
  }
  if (error) return FileError(error.value(), "list", path_);
  std::sort(paths.begin(), paths.end());
  paths.insert(paths.begin(), In(kAuthority));
  std::vector<CertificateFile> files;
  for (const std::string& path : paths) {
    ASSIGN_OR_RETURN(CertificateFile file, Describe(path));
    files.push_back(std::move(file));
  }
  return files;
}

absl::StatusOr<std::string> AddToken(const std::string& path, const TokenHolder& holder) {
  RETURN_IF_ERROR(CheckGrant(holder.grant));
  ASSIGN_OR_RETURN(const UniqueFd lock, LockFile(path + ".lock", kLockMs));
  std::string text;
  if (Exists(path)) {
    ASSIGN_OR_RETURN(text, ReadTextFile(path, kPemBytesMax));
    const absl::Status parsed = Tokens::Parse(text).status();
    if (!parsed.ok()) {
      return absl::Status(parsed.code(), absl::StrCat("--tokens: ", path, ": ", parsed.message()));
    }
    if (!text.empty() && text.back() != '\n') text += '\n';
  }
  ASSIGN_OR_RETURN(std::string token, MakeToken());
  RETURN_IF_ERROR(Replace(path, text + TokenLine(token, holder), 0600));
  return token;
}

}  // namespace terrace
