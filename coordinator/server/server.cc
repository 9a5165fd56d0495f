// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/server.h"

#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/http/metrics_server.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/stop_signals.h"
#include "coordinator/control/control.h"
#include "coordinator/planning/caching_planner.h"
#include "coordinator/planning/process_planner.h"
#include "coordinator/server/audit.h"
#include "coordinator/server/backup_service.h"
#include "coordinator/server/call_guard.h"
#include "coordinator/server/credentials.h"
#include "coordinator/server/drain_service.h"
#include "coordinator/server/evaluation_service.h"
#include "coordinator/server/gatekeeper.h"
#include "coordinator/server/job_service.h"
#include "coordinator/server/list_service.h"
#include "coordinator/server/metrics.h"
#include "coordinator/server/queue_service.h"
#include "coordinator/server/rpc.h"
#include "coordinator/server/worker_service.h"
#include "coordinator/store/sqlite_store.h"
#include "coordinator/web/web_page.h"

namespace terrace {
namespace {

constexpr int64_t kTokenBytesMax = 4096;
constexpr size_t kTokenBytesMin = 16;
constexpr int kWindowBytes = 1 << 20;  // of a stream: 50 MB/s over 20 ms
// Of the time that a plan may take: an evaluation ends itself before it is ended.
constexpr double kEvaluationShare = 0.7;
constexpr int kStreamsMax = 256;
constexpr int kPingMs = 5'000;
constexpr int kSilenceMs = 10'000;
constexpr auto kShutdownGrace = std::chrono::milliseconds(500);

using Services = std::vector<std::unique_ptr<grpc::Service>>;

struct Listening {
  std::unique_ptr<grpc::Server> server;
  int port = 0;
};

absl::StatusOr<Listening> Listen(const ServeOptions& options, const ServerTls& tls,
                                 const Services& services) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  Listening listening;
  builder.AddListeningPort(options.listen, tls.Credentials(), &listening.port);
  // Without this two coordinators could listen on one port and each see half of the workers.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // A window of fixed size, as workers have it: to find one out takes a ping for each message.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindowBytes);
  // Clients ask every 10 s whether it lives while they wait.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kPingMs);
  // Of a connection that never speaks; two minutes where nothing is said.
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kSilenceMs);
  // Of one connection: a client has a few, a worker one.
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsMax);
  builder.SetMaxReceiveMessageSize(kRpcMessageBytesMax);
  for (const auto& service : services) builder.RegisterService(service.get());
  listening.server = builder.BuildAndStart();
  if (listening.server == nullptr || listening.port == 0) {
    return absl::UnavailableError(
        absl::StrCat("--listen: cannot listen on ", options.listen,
                     ": the port is in use or the host is no address of this machine; choose "
                     "another, or port 0 for any that is free"));
  }
  return listening;
}

absl::StatusOr<std::unique_ptr<HttpServer>> StartMetrics(const ServeOptions& options,
                                                         const CoordinatorMetrics& metrics) {
  return ServeMetrics(
      {.address = options.metrics_listen,
       .insecure = options.metrics_insecure || (options.insecure && options.tls_cert.empty()),
       .tls_cert = options.tls_cert,
       .tls_key = options.tls_key,
       .tls_ca = options.tls_ca},
      [&metrics] { return metrics.Text(); });
}

// The first line of the file.
absl::StatusOr<std::string> ReadToken(const std::string& path) {
  if (path.empty()) return "";
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kTokenBytesMax));
  const std::string token(absl::StripAsciiWhitespace(text));
  if (token.size() >= kTokenBytesMin && token.find('\n') == std::string::npos) return token;
  return absl::InvalidArgumentError(
      absl::StrCat("--web-token-file: ", path, " must hold one line of at least ", kTokenBytesMin,
                   " characters that nobody guesses; `openssl rand -hex 32` prints such a one"));
}

absl::StatusOr<std::unique_ptr<HttpServer>> StartWebPage(const ServeOptions& options,
                                                         Control& control, AuditLog& audit) {
  ASSIGN_OR_RETURN(std::string token, ReadToken(options.web_token_file));
  return HttpServer::Start(
      {.option = "--web-listen",
       .insecure_option = "--web-insecure",
       .readers = "everybody may read jobs, logs and specs",
       .address = options.web_listen,
       .insecure = options.web_insecure || (options.insecure && options.tls_cert.empty()),
       .tls_cert = options.tls_cert,
       .tls_key = options.tls_key,
       .tls_ca = options.tls_ca},
      WebPage(control, {.listen = options.web_listen,
                        .operator_token = std::move(token),
                        .changed = [&audit](const WebChange& change) {
                          AuditRecord record{.call = change.call,
                                             .job = change.job,
                                             .node = {},
                                             .arguments = {{"from", "web page"}},
                                             .caller = {.shown = Caller::Shown::kToken,
                                                        .identity = {{{Role::kOperator, "web"}}},
                                                        .peer = {}},
                                             .status = change.status};
                          if (change.force) record.arguments["force"] = "true";
                          audit.Write(record);
                        }}));
}

// These have no way to take other certificates while they run. `start` listens at the same address,
// so the old one goes first.
absl::Status Restart(std::unique_ptr<HttpServer>* server,
                     const std::function<absl::StatusOr<std::unique_ptr<HttpServer>>()>& start) {
  server->reset();
  ASSIGN_OR_RETURN(*server, start());
  return absl::OkStatus();
}

std::string AuditPath(const ServeOptions& options) {
  return options.audit_log.empty() ? options.state_directory + "/audit.jsonl" : options.audit_log;
}

std::vector<std::pair<std::string, int64_t>> RefusedBy(const Gatekeeper& gate) {
  std::vector<std::pair<std::string, int64_t>> refused;
  for (size_t i = 0; i < kRefusals; ++i) {
    const auto why = static_cast<Refusal>(i);
    refused.emplace_back(RefusalName(why), gate.refused(why));
  }
  return refused;
}

// Renamed into place, so that a reader never sees half of it.
absl::Status WritePortFile(const std::string& path, int port) {
  if (path.empty()) return absl::OkStatus();
  const std::string part = path + ".part";
  RETURN_IF_ERROR(WriteSyncedFile(part, absl::StrCat(port, "\n")));
  return Rename(part, path);
}

// All are borrowed.
Services MakeServices(Control& control, SqliteStore& store, const CallGuard& guard,
                      const ServeOptions& options, int64_t started_unix_ms) {
  Services services;
  services.push_back(MakeJobService(control, guard));
  services.push_back(MakeListService(control, guard));
  services.push_back(MakeHoldService(control, guard));
  services.push_back(MakeQueueService(control, guard));
  services.push_back(MakeDrainService(control, guard));
  services.push_back(MakeWorkerService(control, guard, absl::StrCat(started_unix_ms)));
  services.push_back(MakeBackupService(control.loop(), store, guard, options.state_directory));
  services.push_back(
      MakeEvaluationService(control, kEvaluationShare * static_cast<double>(options.plan_seconds)));
  return services;
}

ProcessPlanner::Options PlannerOptions(const ServeOptions& options) {
  return {.time = absl::Seconds(options.plan_seconds),
          .memory_bytes = options.plan_memory_bytes,
          .roots = options.roots};
}

// Debian builds Abseil with its search for locks that are taken in different orders: each lock of
// gRPC, of which every worker has several, then takes one lock of the whole process. Unit tests
// keep it.
void LockWithoutSearch() { absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore); }

}  // namespace

absl::Status Serve(const ServeOptions& options) {
  LockWithoutSearch();
  ASSIGN_OR_RETURN(StopSignals stop, StopSignals::Block(options.exit_with_parent));
  RETURN_IF_ERROR(stop.AlsoReload());
  RETURN_IF_ERROR(MakeDirectories(options.state_directory));
  ASSIGN_OR_RETURN(const bool is_secure, IsSecure(options));
  Gatekeeper gate(is_secure);
  ASSIGN_OR_RETURN(const auto tls, ServerTls::Make(options, gate));
  ASSIGN_OR_RETURN(auto store, SqliteStore::Open(options.state_directory + "/state.db"));
  const SystemClock clock;
  ProcessPlanner processes(PlannerOptions(options));
  CachingPlanner planner(processes);
  Control control({}, *store, clock, planner, options.queue);
  CoordinatorMetrics metrics(
      options.version, [&control] { return control.PublishedStats(); },
      [&gate] { return RefusedBy(gate); });
  ASSIGN_OR_RETURN(const auto audit, AuditLog::Open({.path = AuditPath(options)}));
  const CallGuard guard(gate, audit.get(),
                        [&metrics](std::string_view method, std::string_view code, double seconds) {
                          metrics.ObserveRpc(method, code, seconds);
                        });
  const Services services = MakeServices(control, *store, guard, options, clock.UnixMillis());
  RETURN_IF_ERROR(control.Start());
  ASSIGN_OR_RETURN(Listening listening, Listen(options, *tls, services));
  std::unique_ptr<HttpServer> scrapes;
  if (!options.metrics_listen.empty()) {
    ASSIGN_OR_RETURN(scrapes, StartMetrics(options, metrics));
    log::Info("metrics on port ", scrapes->port());
  }
  std::unique_ptr<HttpServer> page;
  if (!options.web_listen.empty()) {
    ASSIGN_OR_RETURN(page, StartWebPage(options, control, *audit));
    log::Info("web page on port ", page->port());
    RETURN_IF_ERROR(WritePortFile(options.web_port_file, page->port()));
  }
  RETURN_IF_ERROR(WritePortFile(options.port_file, listening.port));
  log::Info("listening on ", options.listen, ", port ", listening.port, ", state in ",
            options.state_directory);
  const auto reload = [&] {
    log::Info("reading the certificates again, and opening the audit log anew");
    if (const absl::Status status = audit->Reopen(); !status.ok()) log::Error(status.message());
    if (!is_secure) return;
    if (const absl::Status status = tls->Reload(); !status.ok()) {
      return log::Error("the certificates stay as they were: ", status.message());
    }
    log::Info("the certificates are those in the files now");
    const auto again = [](const absl::Status& status) {
      if (!status.ok()) log::Error("after reading the certificates again: ", status.message());
    };
    if (scrapes != nullptr && !options.metrics_insecure)
      again(Restart(&scrapes, [&] { return StartMetrics(options, metrics); }));
    if (page != nullptr && !options.web_insecure)
      again(Restart(&page, [&] { return StartWebPage(options, control, *audit); }));
  };
  log::Info("stopping: ", stop.Wait(reload, [&tls] { return tls->HaveFilesChanged(); }));
  control.Close();
  // Calls under way end while the loop still answers them.
  listening.server->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
  listening.server->Wait();
  control.Stop();
  return absl::OkStatus();
}

}  // namespace terrace
