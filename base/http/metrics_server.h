// Serves one text, that of a process's metrics, at /metrics, for Prometheus.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/http/http_server.h"

namespace terrace {

// A text is served again for so long.
inline constexpr absl::Duration kMetricsTextKept = absl::Milliseconds(250);

// The text in Prometheus' exposition format 0.0.4; called on the server's thread, and no more often
// than that.
using MetricsText = std::function<std::string()>;

// HttpServer::Start at --metrics-listen: of `listen` the address, `insecure` and the TLS files are
// read.
absl::StatusOr<std::unique_ptr<HttpServer>> ServeMetrics(HttpListen listen, MetricsText text);

}  // namespace terrace
