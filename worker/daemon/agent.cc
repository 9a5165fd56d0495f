// SPDX-License-Identifier: Apache-2.0
#include "worker/daemon/agent.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/dial_failure.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "base/tcp.h"
#include "base/tls/files.h"
#include "base/utf8.h"
#include "proto/v1/worker.grpc.pb.h"
#include "proto/worker_instance.h"

namespace terrace {
namespace {

constexpr int kMessageBytesMax = 64 << 20;
constexpr int kWindowBytes = 1 << 20;  // of a stream: 50 MB/s over 20 ms
constexpr absl::Duration kFirstPause = absl::Milliseconds(50);
constexpr absl::Duration kLongestPause = absl::Seconds(1);

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(
    const Agent::Options& options) {
  if (const absl::Status address = CheckHostPort("--coordinator", options.coordinator);
      !address.ok()) {
    return address;
  }
  const int given = !options.tls_cert.empty() + !options.tls_key.empty() + !options.tls_ca.empty();
  if (given == 0) {
    if (IsLoopback(options.coordinator) || options.insecure) {
      return grpc::InsecureChannelCredentials();
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "--coordinator: ", options.coordinator,
        " is another machine, so it needs --tls-cert, --tls-key and --tls-ca; --insecure allows "
        "it without"));
  }
  if (given != 3) {
    return absl::InvalidArgumentError(
        "--tls-cert, --tls-key and --tls-ca go together: both sides prove who they are");
  }
  grpc::SslCredentialsOptions ssl;
  ASSIGN_OR_RETURN(TlsFiles files,
                   ReadTlsFiles({options.tls_cert, options.tls_key, options.tls_ca}, absl::Now()));
  ssl.pem_root_certs = std::move(files.ca);
  ssl.pem_private_key = std::move(files.key);
  ssl.pem_cert_chain = std::move(files.cert);
  return grpc::SslCredentials(ssl);
}

std::shared_ptr<grpc::Channel> MakeChannel(
    const std::string& address, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  // With the shared pool a new channel inherits the back-off of the failed ones, seconds long; the
  // pauses are the agent's.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // A window of fixed size: to find one out, gRPC sends a ping with each message, which wakes up
  // threads on both sides. The coordinator does the same.
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kWindowBytes);
  // A coordinator whose machine died sends nothing, not even an end.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 3'000);
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

}  // namespace

class Agent::Impl {
 public:
  Impl(Options options, Handlers handlers, std::shared_ptr<grpc::ChannelCredentials> credentials)
      : options_(std::move(options)),
        handlers_(std::move(handlers)),
        credentials_(std::move(credentials)),
        node_(options_.node),
        instance_(absl::StrCat(SystemClock().UnixMillis(), "-", getpid())) {}

  void Start() {
    thread_ = std::thread([this] { Run(); });
  }

  void Stop() {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
      if (context_ != nullptr) context_->TryCancel();
    }
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Reload() {
    ASSIGN_OR_RETURN(auto credentials, MakeCredentials(options_));
    absl::MutexLock lock(&mutex_);
    credentials_ = std::move(credentials);
    if (context_ != nullptr && !options_.tls_ca.empty()) context_->TryCancel();
    return absl::OkStatus();
  }

  void SetProfile(const v1::HardwareProfile& profile) {
    absl::MutexLock lock(&mutex_);
    *node_.mutable_profile() = profile;
  }

  bool Send(const v1::WorkerMessage& message) {
    absl::MutexLock lock(&mutex_);
    const size_t bytes = message.ByteSizeLong();
    if (!registered_ || queued_bytes_ + bytes > kAgentBytesQueuedMax) return false;
    queued_bytes_ += bytes;
    queue_.push_back(message);
    return true;
  }

 private:
  // Why there is no connection.
  struct Failure {
    std::string text;
    bool refused = false;  // by a coordinator that answered
  };
  using Stream = grpc::ClientReaderWriter<v1::WorkerMessage, v1::CoordinatorMessage>;

  void Run() {
    absl::Duration pause = kFirstPause;
    std::string complaint;
    while (!IsStopping()) {
      Failure failure;
      if (Connect(&failure)) {
        pause = kFirstPause;
        complaint.clear();
        if (IsStopping()) return;
        log::Warn("lost the coordinator at ", options_.coordinator, "; ranks go on without it");
      } else if (complaint.empty() || (failure.refused && failure.text != complaint)) {
        complaint = failure.text;  // once, not once a second
        log::Warn(failure.text, "; trying until it answers");
      }
      if (failure.refused) TakeNewFiles();
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&stopping_), pause);
      pause = std::min(2 * pause, kLongestPause);
    }
  }

  // The certificate that was refused may have been replaced.
  void TakeNewFiles() {
    auto credentials = MakeCredentials(options_);
    absl::MutexLock lock(&mutex_);
    if (credentials.ok()) credentials_ = *std::move(credentials);
  }

  // One connection from dial to end. True when it was registered.
  bool Connect(Failure* failure) {
    grpc::ClientContext context;
    context.AddMetadata(kWorkerInstanceKey, instance_);
    std::shared_ptr<grpc::ChannelCredentials> credentials;
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return true;
      context_ = &context;
      credentials = credentials_;
    }
    const auto stub = v1::WorkerService::NewStub(MakeChannel(options_.coordinator, credentials));
    std::unique_ptr<Stream> stream = stub->Connect(&context);
    const bool registered = Register(*stream, &failure->text);
    if (registered) Serve(*stream);
    *failure = FailureOf(stream->Finish(), failure->text);
    absl::MutexLock lock(&mutex_);
    context_ = nullptr;
    return registered;
  }

  // Why a connection ended; `said` is what the coordinator answered to the registration.
  Failure FailureOf(const grpc::Status& status, const std::string& said) const {
    const bool refused = !said.empty() ||
                         status.error_code() == grpc::StatusCode::UNAUTHENTICATED ||
                         status.error_code() == grpc::StatusCode::PERMISSION_DENIED;
    if (refused) {
      return {absl::StrCat("the coordinator at ", options_.coordinator, " refuses this worker: ",
                           said.empty() ? CleanLine(status.error_message()) : said),
              true};
    }
    return {absl::StrCat("cannot reach the coordinator at ", options_.coordinator, ": ",
                         ExplainDialFailure(status.error_message(),
                                            options_.tls_ca.empty() ? Dialed::kPlain
                                                                    : Dialed::kTlsWithCertificate)),
            false};
  }

  bool Register(Stream& stream, std::string* error) {
    v1::WorkerMessage hello;
    {
      absl::MutexLock lock(&mutex_);
      *hello.mutable_register_()->mutable_node() = node_;
    }
    v1::CoordinatorMessage reply;
    if (!stream.Write(hello) || !stream.Read(&reply)) return false;
    *error = reply.registered().error();
    if (!reply.has_registered() || !error->empty()) return false;
    {
      absl::MutexLock lock(&mutex_);
      registered_ = true;
    }
    log::Info("registered with the coordinator at ", options_.coordinator);
    handlers_.on_registered(reply.registered());
    return true;
  }

  void Serve(Stream& stream) {
    std::thread writer([this, &stream] { WriteQueued(stream); });
    v1::CoordinatorMessage message;
    while (stream.Read(&message)) handlers_.on_message(message);
    {
      absl::MutexLock lock(&mutex_);
      registered_ = false;
      queue_.clear();
      queued_bytes_ = 0;
      if (context_ != nullptr) context_->TryCancel();  // a write under way fails at once
    }
    writer.join();
    handlers_.on_disconnected();
  }

  void WriteQueued(Stream& stream) {
    const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !registered_ || !queue_.empty();
    };
    while (true) {
      v1::WorkerMessage message;
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(&ready));
        if (!registered_) return;
        message = std::move(queue_.front());
        queue_.pop_front();
        queued_bytes_ -= message.ByteSizeLong();
      }
      if (!stream.Write(message)) return;
    }
  }

  bool IsStopping() {
    absl::MutexLock lock(&mutex_);
    return stopping_;
  }

  const Options options_;
  const Handlers handlers_;
  std::thread thread_;
  absl::Mutex mutex_;
  // Shared with the channels.
  std::shared_ptr<grpc::ChannelCredentials> credentials_ ABSL_GUARDED_BY(mutex_);
  v1::Node node_ ABSL_GUARDED_BY(mutex_);
  const std::string instance_;  // of this process, to tell it from the next of its name
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool registered_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;  // of the present connection
  std::deque<v1::WorkerMessage> queue_ ABSL_GUARDED_BY(mutex_);
  size_t queued_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

Agent::Agent(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Agent::~Agent() { impl_->Stop(); }

absl::StatusOr<std::unique_ptr<Agent>> Agent::Create(Options options, Handlers handlers) {
  ASSIGN_OR_RETURN(auto credentials, MakeCredentials(options));
  return std::unique_ptr<Agent>(new Agent(
      std::make_unique<Impl>(std::move(options), std::move(handlers), std::move(credentials))));
}

void Agent::Start() { impl_->Start(); }
void Agent::Stop() { impl_->Stop(); }
absl::Status Agent::Reload() { return impl_->Reload(); }
void Agent::SetProfile(const v1::HardwareProfile& profile) { impl_->SetProfile(profile); }
bool Agent::Send(const v1::WorkerMessage& message) { return impl_->Send(message); }

}  // namespace terrace
