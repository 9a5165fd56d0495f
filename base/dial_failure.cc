// SPDX-License-Identifier: Apache-2.0
#include "base/dial_failure.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "base/strings.h"
#include "base/utf8.h"

namespace terrace {
namespace {

constexpr size_t kErrorBytesMax = 400;
constexpr char kStart[] =
    "start one with terrace-coordinator serve, or name it with --coordinator HOST:PORT or "
    "TERRACE_COORDINATOR";

constexpr char kSpeaksHttp[] =
    "it speaks HTTP/1, as a coordinator does at --metrics-listen and --web-listen: name the "
    "address "
    "of its --listen with --coordinator";

constexpr char kOther[] =
    "something else listens there: name the address of a coordinator's --listen with --coordinator";

struct Cause {
  std::string_view seen;  // part of gRPC's message
  bool tls;               // dialed with it
  std::string_view explanation;
};

// The first that fits.
constexpr std::array kCauses = {
    Cause{
        "certificate verify failed", true,
        "its certificate is not signed by the authority in --tls-ca, or has run out, or that file "
        "is another cluster's"},
    Cause{"wrong version number", true,
          "it does not speak TLS: leave out --tls-ca, --tls-cert and "
          "--tls-key, or start it with them"},
    Cause{
        "is not in peer certificate", true,
        "its certificate is for another name: name it with --coordinator as the certificate does"},
    Cause{"http1.x server", false, kSpeaksHttp},
    Cause{"http1.x server", true, kSpeaksHttp},
    Cause{"Failed parsing HTTP/2", false, kOther},
    Cause{"Failed parsing HTTP/2", true, kOther},
    Cause{"Socket closed", false,
          "it closed the connection: it has just ended, or it wants TLS (give --tls-ca, --tls-cert "
          "and --tls-key)"},
    Cause{"SETTINGS", false,
          "something accepts connections there but does not answer: it is busy, "
          "stopped or no coordinator"},
    Cause{"SETTINGS", true,
          "something accepts connections there but does not answer: it is busy, "
          "stopped or no coordinator"},
};

std::string_view Explanation(std::string_view error, Dialed dialed) {
  if (dialed != Dialed::kPlain && error.find("Socket closed") != std::string_view::npos) {
    return dialed == Dialed::kTls
               ? "it has just ended, or it wants a certificate: give --tls-cert and --tls-key"
               : "it has just ended, or it refused the certificate in --tls-cert: give one that "
                 "its "
                 "authority signed";
  }
  for (const Cause& cause : kCauses) {
    if (cause.tls == (dialed != Dialed::kPlain) && error.find(cause.seen) != std::string_view::npos)
      return cause.explanation;
  }
  return kStart;
}

}  // namespace

std::string ExplainDialFailure(std::string_view error, Dialed dialed) {
  return absl::StrCat(CleanLine(error, kErrorBytesMax), "; ", Absl(Explanation(error, dialed)));
}

}  // namespace terrace
