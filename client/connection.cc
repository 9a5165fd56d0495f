// SPDX-License-Identifier: Apache-2.0
#include "client/connection.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <type_traits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/dial_failure.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/tcp.h"
#include "base/tls/files.h"
#include "base/utf8.h"
#include "client/waiting.h"
#include "proto/unknown_call.h"
#include "proto/v1/backup.grpc.pb.h"
#include "proto/v1/drain.grpc.pb.h"
#include "proto/v1/evaluation.grpc.pb.h"
#include "proto/v1/hold.grpc.pb.h"
#include "proto/v1/job.grpc.pb.h"
#include "proto/v1/list.grpc.pb.h"
#include "proto/v1/queue.grpc.pb.h"

namespace terrace {
namespace {

constexpr auto kAnswerTimeout = std::chrono::seconds(10);
// A call that plans may take this long; pings show meanwhile that the coordinator lives.
constexpr auto kPlanTimeout = std::chrono::minutes(10);
constexpr int kConnectTimeoutMs = 8'000;  // less than kAnswerTimeout: its error says more
// Between tries to connect: whoever follows a job goes on soon after the coordinator is back.
constexpr int kFirstBackoffMs = 200;
constexpr int kBackoffMsMax = 1'000;
constexpr auto kRetryPause = std::chrono::seconds(1);
constexpr int kPingMs = 10'000;              // the coordinator allows one every 5 s
constexpr int kMaxMessageBytes = 256 << 20;  // explain returns whole programs
// An error travels in the trailers, three bytes for each that is not plain ASCII (base/utf8.h).
constexpr int kMaxErrorBytes = 64 << 10;
constexpr int64_t kTokenBytesMax = 4096;
constexpr size_t kSaidBytesMax = 200;

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Credentials(
    const GlobalOptions& options) {
  if (options.tls_cert.empty() != options.tls_key.empty() ||
      (options.tls_ca.empty() && !options.tls_cert.empty())) {
    return absl::InvalidArgumentError(
        "--tls-cert and --tls-key go together, and with --tls-ca: both sides prove who they are");
  }
  if (options.tls_ca.empty() && !options.token_file.empty()) {
    return absl::InvalidArgumentError(
        "--token-file: a token is sent over TLS only; give --tls-ca too");
  }
  if (options.tls_ca.empty()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions ssl;
  ASSIGN_OR_RETURN(TlsFiles files,
                   ReadTlsFiles({options.tls_cert, options.tls_key, options.tls_ca}, absl::Now()));
  ssl.pem_root_certs = std::move(files.ca);
  ssl.pem_cert_chain = std::move(files.cert);
  ssl.pem_private_key = std::move(files.key);
  if (options.token_file.empty()) return grpc::SslCredentials(ssl);
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(options.token_file, kTokenBytesMax));
  const std::string token(absl::StripAsciiWhitespace(text));
  const auto is_visible = [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); };
  if (token.empty() || !std::all_of(token.begin(), token.end(), is_visible)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--token-file: ", options.token_file,
                     " must hold one line with a token, as `terrace certs token` prints it"));
  }
  return grpc::CompositeChannelCredentials(grpc::SslCredentials(ssl),
                                           grpc::AccessTokenCredentials(token));
}

Dialed DialedWith(const GlobalOptions& options) {
  if (options.tls_ca.empty()) return Dialed::kPlain;
  return options.tls_cert.empty() ? Dialed::kTls : Dialed::kTlsWithCertificate;
}

class GrpcConnection final : public Connection {
 public:
  GrpcConnection(std::string address, Dialed dialed, std::shared_ptr<grpc::Channel> channel)
      : address_(std::move(address)),
        dialed_(dialed),
        drains_(v1::DrainService::NewStub(channel)),
        holds_(v1::HoldService::NewStub(channel)),
        lists_(v1::ListService::NewStub(channel)),
        queue_(v1::QueueService::NewStub(channel)),
        stub_(v1::JobService::NewStub(channel)),
        evaluations_(v1::EvaluationService::NewStub(channel)),
        backups_(v1::BackupService::NewStub(channel)),
        channel_(std::move(channel)) {}

  absl::StatusOr<v1::Job> Submit(const v1::SubmitRequest& request, bool hold,
                                 const std::vector<v1::Dependency>& dependencies) override {
    const Waiting waiting("planning");
    if (!dependencies.empty()) {
      v1::SubmitAfterRequest after;
      *after.mutable_submission() = request;
      *after.mutable_dependencies() = {dependencies.begin(), dependencies.end()};
      after.set_hold(hold);
      return JobOf(&v1::QueueService::Stub::SubmitAfter, after, kPlanTimeout);
    }
    if (!hold) return JobOf(&v1::JobService::Stub::Submit, request, kPlanTimeout);
    v1::SubmitHeldRequest held;
    *held.mutable_submission() = request;
    return JobOf(&v1::HoldService::Stub::SubmitHeld, held, kPlanTimeout);
  }
  absl::StatusOr<v1::Job> SubmitMember(const v1::SubmitMemberRequest& request) override {
    return JobOf(&v1::QueueService::Stub::SubmitMember, request, kPlanTimeout);
  }
  absl::StatusOr<v1::Job> Get(const std::string& id) override {
    v1::GetJobRequest request;
    request.set_id(id);
    return JobOf(&v1::JobService::Stub::Get, request);
  }
  absl::StatusOr<v1::ListPageResponse> ListPage(const v1::ListPageRequest& request) override {
    v1::ListPageResponse response;
    RETURN_IF_ERROR(Call(&v1::ListService::Stub::ListPage, request, &response));
    return response;
  }
  absl::StatusOr<v1::Job> Cancel(const std::string& id, bool force) override {
    v1::CancelJobRequest request;
    request.set_id(id);
    request.set_force(force);
    return JobOf(&v1::JobService::Stub::Cancel, request);
  }
  absl::StatusOr<v1::Job> Pause(const std::string& id, bool force) override {
    v1::PauseJobRequest request;
    request.set_id(id);
    request.set_force(force);
    return JobOf(&v1::JobService::Stub::Pause, request);
  }
  absl::StatusOr<v1::Job> Resume(const std::string& id) override {
    v1::ResumeJobRequest request;
    request.set_id(id);
    return JobOf(&v1::JobService::Stub::Resume, request);
  }
  absl::StatusOr<v1::Job> Requeue(const std::string& id, bool force) override {
    v1::RequeueRequest request;
    request.set_id(id);
    request.set_force(force);
    return JobOf(&v1::QueueService::Stub::Requeue, request);
  }
  absl::StatusOr<v1::ExplainResponse> Explain(const v1::ExplainRequest& request) override {
    v1::ExplainResponse response;
    const Waiting waiting("compiling");
    RETURN_IF_ERROR(Call(&v1::JobService::Stub::Explain, request, &response, kPlanTimeout));
    return response;
  }
  absl::StatusOr<v1::ListNodesResponse> ListNodes() override {
    v1::ListNodesResponse response;
    RETURN_IF_ERROR(Call(&v1::JobService::Stub::ListNodes, v1::ListNodesRequest(), &response));
    return response;
  }
  absl::StatusOr<v1::DrainedNode> Drain(const v1::DrainRequest& request) override {
    v1::DrainResponse response;
    RETURN_IF_ERROR(Call(&v1::DrainService::Stub::Drain, request, &response));
    return response.node();
  }
  absl::StatusOr<v1::Drain> Undrain(const std::string& node) override {
    v1::UndrainRequest request;
    request.set_node(node);
    v1::UndrainResponse response;
    RETURN_IF_ERROR(Call(&v1::DrainService::Stub::Undrain, request, &response));
    return response.ended();
  }
  absl::StatusOr<v1::ListDrainsResponse> ListDrains() override {
    v1::ListDrainsResponse response;
    RETURN_IF_ERROR(Call(&v1::DrainService::Stub::ListDrains, v1::ListDrainsRequest(), &response));
    return response;
  }
  absl::StatusOr<v1::ListSharesResponse> ListShares() override {
    v1::ListSharesResponse response;
    RETURN_IF_ERROR(Call(&v1::QueueService::Stub::ListShares, v1::ListSharesRequest(), &response));
    return response;
  }
  absl::Status Backup(const std::function<absl::Status(const v1::BackupChunk&)>& visit) override {
    grpc::ClientContext context;
    const auto stream = backups_->Backup(&context, v1::BackupRequest());
    v1::BackupChunk chunk;
    absl::Status visited;
    bool begun = false;
    while (visited.ok() && stream->Read(&chunk)) {
      begun = true;
      visited = visit(chunk);
    }
    if (!visited.ok()) context.TryCancel();
    const grpc::Status status = stream->Finish();
    if (!visited.ok()) return visited;
    if (begun && status.error_code() == grpc::StatusCode::UNAVAILABLE) {
      return absl::UnavailableError(
          absl::StrCat("the coordinator at ", address_, " ended while it sent the backup (",
                       CleanLine(status.error_message(), kSaidBytesMax),
                       "), and nothing was written: try again when it is back"));
    }
    return FromGrpc(status, "Backup");
  }
  absl::StatusOr<v1::GetMemoryResponse> GetMemory(const std::string& id) override {
    v1::GetMemoryRequest request;
    request.set_id(id);
    v1::GetMemoryResponse response;
    RETURN_IF_ERROR(Call(&v1::JobService::Stub::GetMemory, request, &response));
    return response;
  }
  absl::StatusOr<v1::Evaluation> Evaluate(
      const v1::EvaluateRequest& request,
      const std::function<void(const v1::EvaluationProgress&)>& tell) override {
    grpc::ClientContext context;
    const auto stream = evaluations_->Evaluate(&context, request);
    v1::EvaluateReply reply;
    std::optional<v1::Evaluation> evaluation;
    while (stream->Read(&reply)) {
      if (reply.has_progress()) tell(reply.progress());
      if (reply.has_evaluation()) evaluation = std::move(*reply.mutable_evaluation());
    }
    const grpc::Status status = stream->Finish();
    if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
      const absl::Status older = FromGrpc(status, "Evaluate");
      return absl::Status(older.code(), absl::StrCat(older.message(), ", or use --cluster"));
    }
    RETURN_IF_ERROR(FromGrpc(status, "Evaluate"));
    if (evaluation) return *std::move(evaluation);
    return absl::InternalError(
        absl::StrCat("the coordinator at ", address_, " ended without an evaluation"));
  }
  absl::Status Watch(const v1::WatchJobRequest& request,
                     const std::function<bool(const v1::JobEvent&)>& visit) override {
    grpc::ClientContext context;
    const auto stream = stub_->Watch(&context, request);
    v1::JobEvent event;
    while (stream->Read(&event)) {
      if (visit(event)) continue;
      context.TryCancel();
      while (stream->Read(&event)) {
      }
      stream->Finish();
      return absl::OkStatus();
    }
    return FromGrpc(stream->Finish(), "Watch");
  }
  absl::Status Logs(const v1::LogsRequest& request,
                    const std::function<void(const v1::LogsChunk&)>& visit) override {
    grpc::ClientContext context;
    const auto stream = stub_->Logs(&context, request);
    v1::LogsChunk chunk;
    while (stream->Read(&chunk)) visit(chunk);
    return FromGrpc(stream->Finish(), "Logs");
  }
  // While no call waits gRPC looks only every 5 s whether its tries to connect have come to an end.
  void PauseBeforeRetry() override {
    const auto until = std::chrono::system_clock::now() + kRetryPause;
    if (channel_->GetState(/*try_to_connect=*/true) == GRPC_CHANNEL_READY) {
      std::this_thread::sleep_until(until);
    } else {
      channel_->WaitForConnected(until);
    }
  }

 private:
  template <typename Service, typename... Arguments>
  auto StubOf(grpc::Status (Service::*)(Arguments...)) const {
    if constexpr (std::is_same_v<Service, v1::DrainService::Stub>) {
      return drains_.get();
    } else if constexpr (std::is_same_v<Service, v1::HoldService::Stub>) {
      return holds_.get();
    } else if constexpr (std::is_same_v<Service, v1::ListService::Stub>) {
      return lists_.get();
    } else if constexpr (std::is_same_v<Service, v1::QueueService::Stub>) {
      return queue_.get();
    } else {
      return stub_.get();
    }
  }

  // Makes a call that is answered with one job.
  template <typename Service, typename Request, typename Response>
  absl::StatusOr<v1::Job> JobOf(grpc::Status (Service::*method)(grpc::ClientContext*,
                                                                const Request&, Response*),
                                const Request& request,
                                std::chrono::seconds timeout = kAnswerTimeout) {
    Response response;
    RETURN_IF_ERROR(Call(method, request, &response, timeout));
    return std::move(*response.mutable_job());
  }

  template <typename Method, typename Request, typename Response>
  absl::Status Call(Method method, const Request& request, Response* response,
                    std::chrono::seconds timeout = kAnswerTimeout) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + timeout);
    const grpc::Status status = (StubOf(method)->*method)(&context, request, response);
    const std::string& request_name = Request::descriptor()->name();
    if (status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED) {
      return FromGrpc(status, absl::StripSuffix(request_name, "Request"));
    }
    return absl::UnavailableError(absl::StrCat("the coordinator at ", address_, " did not answer ",
                                               request_name, " within ", timeout.count(),
                                               " s; it may be stopped or busy: look at its log"));
  }

  // The error of a call; `call` is its name ("Drain").
  absl::Status FromGrpc(const grpc::Status& status, absl::string_view call) const {
    if (status.ok()) return absl::OkStatus();
    if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
      // A coordinator says nothing more of a call that it does not know; others do ("404").
      if (const std::string said = status.error_message(); !said.empty() && said != kUnknownCall) {
        return absl::UnavailableError(
            absl::StrCat("no coordinator answers at ", address_, ", but something else does (",
                         CleanLine(said, kSaidBytesMax),
                         "): name the address of its --listen with --coordinator; where a proxy is "
                         "between, except that host in the environment's no_proxy"));
      }
      return absl::FailedPreconditionError(absl::StrCat(
          "the coordinator at ", address_, " does not know the call ", call,
          ": it is of an older version than this terrace ", TERRACE_VERSION,
          " (`terrace-coordinator --version` tells its version): upgrade it to that version"));
    }
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
      return absl::UnavailableError(
          absl::StrCat("no coordinator answers at ", address_, ": ",
                       ExplainDialFailure(status.error_message(), dialed_)));
    }
    const auto code = static_cast<absl::StatusCode>(status.error_code());
    const bool refused =
        code == absl::StatusCode::kUnauthenticated || code == absl::StatusCode::kPermissionDenied;
    return absl::Status(
        code, absl::StrCat(
                  refused ? absl::StrCat("the coordinator at ", address_, " refuses this: ") : "",
                  status.error_message()));
  }

  const std::string address_;
  const Dialed dialed_;
  const std::unique_ptr<v1::DrainService::Stub> drains_;
  const std::unique_ptr<v1::HoldService::Stub> holds_;
  const std::unique_ptr<v1::ListService::Stub> lists_;
  const std::unique_ptr<v1::QueueService::Stub> queue_;
  const std::unique_ptr<v1::JobService::Stub> stub_;
  const std::unique_ptr<v1::EvaluationService::Stub> evaluations_;
  const std::unique_ptr<v1::BackupService::Stub> backups_;
  const std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Connection>> Connection::Open(const GlobalOptions& options) {
  RETURN_IF_ERROR(CheckHostPort("--coordinator", options.coordinator));
  ASSIGN_OR_RETURN(auto credentials, Credentials(options));
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, kMaxErrorBytes);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstBackoffMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kBackoffMsMax);
  // A host that is gone, or a process that is stopped, ends a stream that waits for events.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // no bound
  auto channel = grpc::CreateCustomChannel(options.coordinator, credentials, arguments);
  return std::make_unique<GrpcConnection>(options.coordinator, DialedWith(options),
                                          std::move(channel));
}

}  // namespace terrace
