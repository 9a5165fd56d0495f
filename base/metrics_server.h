// Serves one text, that of a process's metrics, at /metrics over HTTP, for Prometheus.
//
// Connections wait in epoll and hold no thread, so that those that never speak keep no scrape
// waiting; each is closed after ten silent seconds, and their number is bounded, also of one peer.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace terrace {

struct MetricsListen {
  std::string address;     // host:port; port 0 takes a free one
  bool insecure = false;   // plain HTTP also where other machines reach the address
  std::string tls_cert;    // PEM files: all three or none. Off loopback they make it HTTPS, for
  std::string tls_key;     // clients with a certificate that `tls_ca` signed
  std::string tls_ca;
};

class MetricsServer {
 public:
  // The text in Prometheus' exposition format 0.0.4; called on the server's thread.
  using Text = std::function<std::string()>;

  // Listens until it is destroyed. INVALID_ARGUMENT where other machines reach the address and
  // neither TLS nor `insecure` is given, UNAVAILABLE when it cannot be had.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const MetricsListen& listen,
                                                              Text text);
  virtual ~MetricsServer() = default;

  virtual int port() const = 0;
};

}  // namespace terrace
