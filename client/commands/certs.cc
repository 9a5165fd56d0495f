// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/tls/openssl.h"
#include "client/certificates.h"
#include "client/commands/commands.h"
#include "client/print.h"
#include "client/table.h"

namespace terrace {
namespace {

constexpr char kCoordinator[] = "coordinator";

absl::Duration Days(int64_t days) { return absl::Hours(24 * days); }

std::string RoleOf(const CertificateFile& file) {
  if (file.info.is_authority) return "authority";
  if (file.info.subject.grants.empty()) return kCoordinator;
  return absl::StrJoin(file.info.subject.grants, " ", [](std::string* out, const Grant& grant) {
    absl::StrAppend(out, Absl(RoleName(grant.role)));
  });
}

std::string NameOf(const CertificateFile& file) {
  if (file.info.subject.grants.empty()) return file.info.subject.name;
  return absl::StrJoin(file.info.subject.grants, " ", [](std::string* out, const Grant& grant) {
    absl::StrAppend(out, grant.name);
  });
}

nlohmann::json JsonOf(const CertificateFile& file) {
  return {{"certificate", file.certificate_path},
          {"key", file.key_path},
          {"role", RoleOf(file)},
          {"name", NameOf(file)},
          {"hosts", file.info.subject.hosts},
          {"issuer", file.info.issuer},
          {"not_before_unix_s", absl::ToUnixSeconds(file.info.begin)},
          {"not_after_unix_s", absl::ToUnixSeconds(file.info.end)},
          {"trouble", file.trouble}};
}

void Print(const GlobalOptions& global, const std::vector<CertificateFile>& files) {
  if (global.json()) {
    nlohmann::json list = nlohmann::json::array();
    for (const CertificateFile& file : files) list.push_back(JsonOf(file));
    std::printf("%s\n", nlohmann::json{{"certificates", std::move(list)}}.dump(2).c_str());
    return;
  }
  Table table({"CERTIFICATE", "ROLE", "NAME", "HOSTS", "VALID UNTIL", "TROUBLE"});
  for (const CertificateFile& file : files) {
    const std::string hosts = absl::StrJoin(file.info.subject.hosts, " ");
    table.Add({file.certificate_path, RoleOf(file), NameOf(file), hosts.empty() ? "-" : hosts,
               DateText(file.info.end), file.trouble.empty() ? "-" : file.trouble});
  }
  std::fputs(table.ToString().c_str(), stdout);
}

int Written(const GlobalOptions& global, const absl::StatusOr<CertificateFile>& file,
            const std::string& hint) {
  if (!file.ok()) return Fail(global, file.status());
  Print(global, {*file});
  if (!global.json()) std::printf("%s\n", hint.c_str());
  return 0;
}

absl::StatusOr<CertificateSubject> SubjectFor(const CertsOptions& options) {
  CertificateSubject subject{.name = options.name, .grants = {}, .hosts = options.hosts};
  if (options.role == kCoordinator) {
    if (!options.name.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a coordinator's certificate has no name but its hosts: give --host ", options.name));
    }
    if (!options.hosts.empty()) subject.name = options.hosts.front();
    return subject;
  }
  Grant grant{.role = *RoleNamed(options.role), .name = options.name};
  if (options.any_name && grant.role != Role::kWorker)
    return absl::InvalidArgumentError("--any-name: only a worker's certificate may have it");
  if (options.any_name != options.name.empty()) {
    return absl::InvalidArgumentError(
        grant.role == Role::kWorker
            ? "a worker's certificate needs the worker's name (its --name), or --any-name for one "
              "that several workers share"
            : absl::StrCat("a ", options.role,
                           "'s certificate needs the person's name: terrace "
                           "certs issue ",
                           options.role, " NAME"));
  }
  if (options.any_name) {
    grant.name = std::string(kAnyName);
    subject.name = "workers";
  }
  RETURN_IF_ERROR(CheckGrant(grant));
  subject.grants = {std::move(grant)};
  return subject;
}

// How the certificate just made is used.
std::string HintFor(const CertsOptions& options, const CertificateFile& file) {
  const std::string tls = absl::StrCat(" --tls-cert ", file.certificate_path, " --tls-key ",
                                       file.key_path, " --tls-ca ", options.directory, "/ca.pem");
  if (options.role == kCoordinator) return absl::StrCat("terrace-coordinator serve", tls);
  if (options.role == RoleName(Role::kWorker)) {
    return absl::StrCat("terrace-worker",
                        options.any_name ? "" : absl::StrCat(" --name ", options.name), tls);
  }
  return absl::StrCat("terrace", tls, " ls");
}

int Rotate(const GlobalOptions& global, const CertsOptions& options,
           const CertificateFolder& folder) {
  if (options.authority) {
    return Written(
        global, folder.RotateAuthority(Days(options.days)),
        absl::StrCat("it signs from now on, and the one before it is still trusted: copy ",
                     options.directory,
                     "/ca.pem to all machines and send SIGHUP to "
                     "their processes, then terrace certs rotate --all, then terrace "
                     "certs rotate --forget-old"));
  }
  if (options.forget_old) {
    return Written(global, folder.ForgetOldAuthorities(),
                   absl::StrCat("authorities before it are not trusted any more, once ",
                                options.directory, "/ca.pem is copied to all machines"));
  }
  if (options.all == !options.files.empty()) {
    return Fail(global, absl::InvalidArgumentError(
                            "name the certificates to make anew, or --all of them, or --authority "
                            "or --forget-old"));
  }
  std::vector<std::string> paths = options.files;
  const absl::Time soon = absl::Now() + Days(options.within_days);
  if (options.all) {
    const auto files = folder.List();
    if (!files.ok()) return Fail(global, files.status());
    for (const CertificateFile& file : *files) {
      if (file.info.is_authority) continue;
      if (options.within_days > 0 && file.info.end > soon) continue;
      paths.push_back(file.certificate_path);
    }
  }
  std::vector<CertificateFile> rotated;
  for (const std::string& path : paths) {
    auto file =
        folder.Rotate(path, options.days > 0 ? std::optional(Days(options.days)) : std::nullopt);
    if (!file.ok()) return Fail(global, file.status());
    rotated.push_back(*std::move(file));
  }
  Print(global, rotated);
  if (!global.json() && !rotated.empty())
    std::puts("copy them to where they are used, and send SIGHUP to the processes there");
  return 0;
}

// Prints the token, which is nowhere else, and adds its hash to the file.
int Token(const GlobalOptions& global, const CertsOptions& options) {
  TokenHolder holder{.grant = {.role = *RoleNamed(options.role), .name = options.name}};
  if (options.days > 0) holder.end = absl::Now() + Days(options.days);
  const auto token = AddToken(options.tokens, holder);
  if (!token.ok()) return Fail(global, token.status());
  if (global.json()) {
    std::printf("%s\n", nlohmann::json{{"token", *token},
                                       {"role", options.role},
                                       {"name", options.name},
                                       {"tokens", options.tokens}}
                            .dump(2)
                            .c_str());
    return 0;
  }
  std::printf("%s\n", token->c_str());
  std::fprintf(stderr,
               "its hash is in %s now; the coordinator reads it on SIGHUP, and %s keeps the token "
               "in a file for --token-file\n",
               options.tokens.c_str(), options.name.c_str());
  return 0;
}

}  // namespace

int CertsCommand(const GlobalOptions& global, const CertsOptions& options) {
  const CertificateFolder folder(options.directory, absl::Now());
  switch (options.action) {
    case CertsOptions::kInit:
      return Written(global, folder.Init(options.name, Days(options.days)),
                     absl::StrCat("keep ", options.directory,
                                  "/ca.key to yourself: whoever has it "
                                  "is anybody; next: terrace certs issue coordinator --host HOST"));
    case CertsOptions::kIssue: {
      const auto subject = SubjectFor(options);
      if (!subject.ok()) return Fail(global, subject.status());
      const auto file = folder.Issue(options.role, *subject, Days(options.days));
      return Written(global, file, file.ok() ? HintFor(options, *file) : "");
    }
    case CertsOptions::kRotate:
      return Rotate(global, options, folder);
    case CertsOptions::kToken:
      return Token(global, options);
    case CertsOptions::kList: {
      const auto files = folder.List();
      if (!files.ok()) return Fail(global, files.status());
      Print(global, *files);
      return 0;
    }
  }
  return 0;
}

}  // namespace terrace
