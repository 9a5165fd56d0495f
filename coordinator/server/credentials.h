// TLS of the coordinator's gRPC server, from PEM files that can be read again while it runs, or
// none on loopback.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/server/gatekeeper.h"
#include "coordinator/server/server.h"

namespace terrace {

// Whether peers are asked who they are. INVALID_ARGUMENT: some TLS files are given and others not,
// or there is none, the address is not on loopback and --insecure is not given.
absl::StatusOr<bool> IsSecure(const ServeOptions& options);

class ServerTls {
 public:
  // Reads the files, if any. INVALID_ARGUMENT: they do not fit. `gate` is borrowed. It must outlive
  // the server that its credentials are given to.
  static absl::StatusOr<std::unique_ptr<ServerTls>> Make(const ServeOptions& options,
                                                         Gatekeeper& gate);
  ~ServerTls();

  // For one server. With TLS each call of it is admitted by the gatekeeper, or not made.
  std::shared_ptr<grpc::ServerCredentials> Credentials() const;

  // Reads the files again. Connections from now on see them; those there are go on, and their calls
  // are checked against the new authorities. When they do not fit nothing changes.
  absl::Status Reload();
  // Whether one of the files is another than Reload() last read, or tried to.
  bool HaveFilesChanged() const;

 private:
  struct State;
  explicit ServerTls(std::unique_ptr<State> state);
  const std::unique_ptr<State> state_;
};

}  // namespace terrace
