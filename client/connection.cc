// SPDX-License-Identifier: Apache-2.0
#include "client/connection.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/v1/job.grpc.pb.h"

namespace terrace {
namespace {

constexpr auto kCallTimeout = std::chrono::seconds(60);  // a submission compiles the job
constexpr int kMaxMessageBytes = 256 << 20;              // explain returns whole programs
// An error travels in the trailers, three bytes for each that is not plain ASCII (base/utf8.h).
constexpr int kMaxErrorBytes = 64 << 10;

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  if (!in || !(text << in.rdbuf()))
    return absl::InvalidArgumentError(absl::StrCat("cannot read TLS file ", path));
  return text.str();
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Credentials(
    const GlobalOptions& options) {
  if (options.tls_ca.empty()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions ssl;
  ASSIGN_OR_RETURN(ssl.pem_root_certs, ReadText(options.tls_ca));
  if (!options.tls_cert.empty()) {
    ASSIGN_OR_RETURN(ssl.pem_cert_chain, ReadText(options.tls_cert));
    ASSIGN_OR_RETURN(ssl.pem_private_key, ReadText(options.tls_key));
  }
  return grpc::SslCredentials(ssl);
}

class GrpcConnection final : public Connection {
 public:
  GrpcConnection(std::string address, std::shared_ptr<grpc::Channel> channel)
      : address_(std::move(address)), stub_(v1::JobService::NewStub(channel)) {}

  absl::StatusOr<v1::Job> Submit(const v1::SubmitRequest& request) override {
    v1::SubmitResponse response;
    RETURN_IF_ERROR(Call(&v1::JobService::Stub::Submit, request, &response));
    return response.job();
  }
  absl::StatusOr<v1::Job> Get(const std::string& id) override {
    v1::GetJobRequest request;
    request.set_id(id);
    v1::GetJobResponse response;
    RETURN_IF_ERROR(Call(&v1::JobService::Stub::Get, request, &response));
    return response.job();
  }
  absl::StatusOr<v1::ListJobsResponse> List(bool all) override {
    v1::ListJobsRequest request;
    request.set_all(all);
    v1::ListJobsResponse response;
    RETURN_IF_ERROR(Call(&v1::JobService::Stub::List, request, &response));
    return response;
  }
  absl::StatusOr<v1::Job> Cancel(const std::string& id, bool force) override {
    v1::CancelJobRequest request;
    request.set_id(id);
    request.set_force(force);
    v1::CancelJobResponse response;
    RETURN_IF_ERROR(Call(&v1::JobService::Stub::Cancel, request, &response));
    return response.job();
  }
  absl::StatusOr<v1::ExplainResponse> Explain(const v1::ExplainRequest& request) override {
    v1::ExplainResponse response;
    RETURN_IF_ERROR(Call(&v1::JobService::Stub::Explain, request, &response));
    return response;
  }
  absl::StatusOr<v1::ListNodesResponse> ListNodes() override {
    v1::ListNodesResponse response;
    RETURN_IF_ERROR(Call(&v1::JobService::Stub::ListNodes, v1::ListNodesRequest(), &response));
    return response;
  }
  absl::StatusOr<v1::GetMemoryResponse> GetMemory(const std::string& id) override {
    v1::GetMemoryRequest request;
    request.set_id(id);
    v1::GetMemoryResponse response;
    RETURN_IF_ERROR(Call(&v1::JobService::Stub::GetMemory, request, &response));
    return response;
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
    return FromGrpc(stream->Finish());
  }
  absl::Status Logs(const v1::LogsRequest& request,
                    const std::function<void(const std::string&)>& visit) override {
    grpc::ClientContext context;
    const auto stream = stub_->Logs(&context, request);
    v1::LogsChunk chunk;
    while (stream->Read(&chunk)) visit(chunk.text());
    return FromGrpc(stream->Finish());
  }

 private:
  template <typename Method, typename Request, typename Response>
  absl::Status Call(Method method, const Request& request, Response* response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCallTimeout);
    return FromGrpc(((*stub_).*method)(&context, request, response));
  }

  absl::Status FromGrpc(const grpc::Status& status) const {
    if (status.ok()) return absl::OkStatus();
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE) {
      return absl::UnavailableError(
          absl::StrCat("no coordinator answers at ", address_, " (", status.error_message(),
                       "); start one with terrace-coordinator serve, or name it with "
                       "--coordinator HOST:PORT or TERRACE_COORDINATOR"));
    }
    return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  }

  std::string address_;
  std::unique_ptr<v1::JobService::Stub> stub_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Connection>> Connection::Open(const GlobalOptions& options) {
  ASSIGN_OR_RETURN(auto credentials, Credentials(options));
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, kMaxErrorBytes);
  auto channel = grpc::CreateCustomChannel(options.coordinator, credentials, arguments);
  return std::make_unique<GrpcConnection>(options.coordinator, std::move(channel));
}

}  // namespace terrace
