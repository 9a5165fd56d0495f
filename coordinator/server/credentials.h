// TLS of the coordinator's gRPC server: mutual, from PEM files, or none on loopback.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/server/server.h"

namespace terrace {

// INVALID_ARGUMENT: some TLS files are given and others not, one cannot be read, or there is none,
// the address is not on loopback and --insecure is not given.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const ServeOptions& options);

}  // namespace terrace
