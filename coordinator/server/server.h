// `terrace-coordinator serve`: store, control loop, gRPC, /metrics and the web page put together,
// until a signal.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "coordinator/queue/options.h"
#include "proto/job_roots.h"

namespace terrace {

struct ServeOptions {
  std::string version;                    // of the program, for /metrics
  std::string listen = "127.0.0.1:7070";  // host:port; port 0 takes a free one
  std::string port_file;                  // where the port taken is written; empty: nowhere
  std::string state_directory;
  std::string metrics_listen;             // empty: no /metrics
  bool metrics_insecure = false;          // allows it without TLS off loopback
  std::string web_listen;                 // empty: no web page
  std::string web_port_file;              // as port_file
  bool web_insecure = false;              // allows it without TLS off loopback
  std::string web_token_file;             // what may change something on the page; empty: nobody
  std::string tls_cert, tls_key, tls_ca;  // PEM files; all or none
  bool insecure = false;                  // allows no TLS off loopback
  std::string tokens;                     // file of people's tokens; empty: there are none
  std::string audit_log;                  // empty: audit.jsonl in the state directory
  bool exit_with_parent = false;
  int64_t plan_seconds = 300;     // that one plan may take
  JobRoots roots;                 // below which paths in specs must lie
  int64_t plan_memory_bytes = 0;  // that one plan may take; 0: a quarter of the machine's
  QueueOptions queue;
};

// Blocks until SIGTERM or SIGINT, or until the parent process dies with exit_with_parent.
// UNAVAILABLE: an address is in use, or another coordinator holds the state directory. Call from
// the main thread before others exist: it blocks signals.
absl::Status Serve(const ServeOptions& options);

}  // namespace terrace
