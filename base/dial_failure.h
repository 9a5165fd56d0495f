// Why a coordinator cannot be reached, in words that say what to do.
//
// gRPC's sentence names what its transport saw ("Socket closed"), not what the two sides disagree
// about. Pure. Thread-safe.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace terrace {

// How the caller dialed.
enum class Dialed {
  kPlain,
  kTls,                 // --tls-ca alone
  kTlsWithCertificate,  // --tls-cert and --tls-key too
};

// `error` is gRPC's message of a call that was UNAVAILABLE. The result ends without a full stop.
std::string ExplainDialFailure(std::string_view error, Dialed dialed);

}  // namespace terrace
