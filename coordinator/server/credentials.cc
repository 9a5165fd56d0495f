// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/credentials.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/tcp.h"
#include "base/tls/files.h"

namespace terrace {
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const ServeOptions& options) {
  const int given = !options.tls_cert.empty() + !options.tls_key.empty() + !options.tls_ca.empty();
  if (given == 0) {
    if (IsLoopback(options.listen) || options.insecure) return grpc::InsecureServerCredentials();
    return absl::InvalidArgumentError(absl::StrCat(
        "--listen: ", options.listen,
        " can be reached from other machines, so it needs --tls-cert, --tls-key and --tls-ca; "
        "--insecure allows it without, for networks where everybody may run jobs"));
  }
  if (given != 3) {
    return absl::InvalidArgumentError(
        "--tls-cert, --tls-key and --tls-ca go together: both sides prove who they are");
  }
  grpc::SslServerCredentialsOptions ssl(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  ASSIGN_OR_RETURN(TlsFiles files,
                   ReadTlsFiles({options.tls_cert, options.tls_key, options.tls_ca}, absl::Now()));
  ssl.pem_root_certs = std::move(files.ca);
  ssl.pem_key_cert_pairs.push_back({std::move(files.key), std::move(files.cert)});
  return grpc::SslServerCredentials(ssl);
}

}  // namespace terrace
