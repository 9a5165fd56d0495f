// The PEM files of --tls-cert, --tls-key and --tls-ca: read, and looked at before they are used.
//
// gRPC says nothing of a key that belongs to another certificate but that there is no address, and
// a certificate that has run out looks like one of another authority.
//
// In: paths and the time. Out: contents. Thread-safe: no state.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace terrace {

struct TlsFiles {
  std::string cert, key, ca;
};

// Contents of the files at `paths`, "" where a path is "". Errors begin with the option.
// INVALID_ARGUMENT for a file that does not hold what its option says, for a key that is not the
// certificate's, and for a certificate of ours that is not valid at `now`.
absl::StatusOr<TlsFiles> ReadTlsFiles(const TlsFiles& paths, absl::Time now);

}  // namespace terrace
