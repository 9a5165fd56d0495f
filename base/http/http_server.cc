// SPDX-License-Identifier: Apache-2.0
#include "base/http/http_server.h"

#include <gnutls/gnutls.h>
#include <microhttpd.h>
#include <netinet/in.h>

#include <optional>
#include <set>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/tcp.h"
#include "base/tls/files.h"

namespace terrace {
namespace {

// Prometheus opens one, a browser six; the process needs its descriptors for other things.
constexpr unsigned kConnectionsMax = 256;
constexpr unsigned kSilenceSecondsMax = 10;

bool IsEncrypted(const HttpListen& listen) {
  return !listen.insecure && !listen.tls_cert.empty() && !IsLoopback(listen.address);
}

absl::Status CheckOptions(const HttpListen& listen) {
  const int files = !listen.tls_cert.empty() + !listen.tls_key.empty() + !listen.tls_ca.empty();
  if (IsLoopback(listen.address) || listen.insecure || files == 3) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      listen.option, ": ", listen.address,
      " can be reached from other machines, so it needs --tls-cert, --tls-key and --tls-ca; ",
      listen.insecure_option, " allows it without, for networks where ", listen.readers));
}

HttpResponse Unavailable() { return {.code = 503, .body = "this process is stopping\n"}; }

// A stream and the connection that it is sent to.
struct Sent {
  std::shared_ptr<HttpStream> stream;
  MHD_Connection* connection;
};

// The library asks for the next part; while there is none the connection rests.
ssize_t NextPart(void* sent, uint64_t /*offset*/, char* to, size_t size) {
  const auto& [stream, connection] = *static_cast<Sent*>(sent);
  const ssize_t taken = stream->Read(
      to, size, [connection] { MHD_suspend_connection(connection); },
      [connection] { MHD_resume_connection(connection); });
  if (taken == HttpStream::kBroken) return MHD_CONTENT_READER_END_WITH_ERROR;
  return taken == HttpStream::kEnd ? MHD_CONTENT_READER_END_OF_STREAM : taken;
}

void Forget(void* sent) {
  const std::unique_ptr<Sent> owned(static_cast<Sent*>(sent));
  owned->stream->Close();
}

MHD_Response* BodyOf(MHD_Connection* connection, const HttpResponse& answer) {
  constexpr size_t kPartBytes = 16 << 10;
  if (answer.stream != nullptr) {
    return MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, kPartBytes, NextPart,
                                             new Sent{answer.stream, connection}, Forget);
  }
  return MHD_create_response_from_buffer(answer.body.size(), const_cast<char*>(answer.body.data()),
                                         MHD_RESPMEM_MUST_COPY);
}

MHD_Result Queue(MHD_Connection* connection, const HttpResponse& answer) {
  MHD_Response* response = BodyOf(connection, answer);
  if (response == nullptr) return MHD_NO;
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, answer.content_type.c_str());
  for (const auto& [name, value] : answer.headers) {
    MHD_add_response_header(response, name.c_str(), value.c_str());
  }
  const MHD_Result queued =
      MHD_queue_response(connection, static_cast<unsigned>(answer.code), response);
  MHD_destroy_response(response);
  return queued;
}

// True of a client whose certificate our authority signed; of all where nothing is encrypted.
bool IsKnown(MHD_Connection* connection) {
  const MHD_ConnectionInfo* info =
      MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
  if (info == nullptr || info->tls_session == nullptr) return true;
  unsigned problems = 0;
  const int failed =
      gnutls_certificate_verify_peers2(static_cast<gnutls_session_t>(info->tls_session), &problems);
  return failed == GNUTLS_E_SUCCESS && problems == 0;
}

HttpRequest RequestOf(MHD_Connection* connection, std::string_view method, const char* path) {
  HttpRequest request{.method = std::string(method == MHD_HTTP_METHOD_HEAD ? "GET" : method),
                      .path = path};
  MHD_get_connection_values(
      connection, MHD_GET_ARGUMENT_KIND,
      [](void* query, MHD_ValueKind, const char* key, const char* value) {
        auto& values = *static_cast<std::map<std::string, std::string, std::less<>>*>(query);
        values[key] = value == nullptr ? "" : value;
        return MHD_YES;
      },
      &request.query);
  const auto header = [connection](const char* name) -> std::string {
    const char* value = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
    return value == nullptr ? "" : value;
  };
  request.host = header(MHD_HTTP_HEADER_HOST);
  request.authorization = header(MHD_HTTP_HEADER_AUTHORIZATION);
  request.accept = header(MHD_HTTP_HEADER_ACCEPT);
  return request;
}

// One request that its handler has not answered yet. Its connection rests meanwhile: the library
// does not look at it until it is resumed.
class Exchange {
 public:
  explicit Exchange(MHD_Connection* connection) : connection_(connection) {}

  void Reply(HttpResponse response) {
    absl::MutexLock lock(&mutex_);
    if (response_.has_value()) {
      if (response.stream != nullptr) response.stream->Close();
      return;
    }
    response_ = std::move(response);
    if (resting_) MHD_resume_connection(connection_);
    resting_ = false;
  }

  // A stream goes on no longer than its server, and its connection.
  void EndStream() {
    if (const auto stream = Stream(); stream != nullptr) stream->End();
  }
  void CloseStream() {
    if (const auto stream = Stream(); stream != nullptr) stream->Close();
  }

  // Queues the answer when there is one; else the connection rests until there is.
  MHD_Result QueueOrRest() {
    absl::MutexLock lock(&mutex_);
    if (response_.has_value()) return Queue(connection_, *response_);
    MHD_suspend_connection(connection_);
    resting_ = true;
    return MHD_YES;
  }

 private:
  std::shared_ptr<HttpStream> Stream() {
    absl::MutexLock lock(&mutex_);
    return response_.has_value() ? response_->stream : nullptr;
  }

  absl::Mutex mutex_;
  MHD_Connection* const connection_;  // not used any more once there is an answer
  std::optional<HttpResponse> response_ ABSL_GUARDED_BY(mutex_);
  bool resting_ ABSL_GUARDED_BY(mutex_) = false;
};

// Who is at the other end: an address, of IPv6 the network that a host has for itself.
std::string PeerOf(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(address);
    return std::string(reinterpret_cast<const char*>(&v4->sin_addr), sizeof v4->sin_addr);
  }
  if (address->sa_family != AF_INET6) return "";
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(address);
  constexpr size_t kNetworkBytes = 8;
  const bool is_v4 = IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr);
  return std::string(reinterpret_cast<const char*>(&v6->sin6_addr),
                     is_v4 ? sizeof v6->sin6_addr : kNetworkBytes);
}

// How many connections each peer has. A peer gets another while more are free than it has: 128 the
// first that takes all it can, 64 the second; whoever has none gets one while any is free. Used
// only on the library's thread.
class Peers {
 public:
  bool Admits(const std::string& peer) const {
    const auto found = connections_.find(peer);
    return found == connections_.end() || found->second < kConnectionsMax - all_;
  }
  void Add(const std::string& peer) {
    ++connections_[peer];
    ++all_;
  }
  void Remove(const std::string& peer) {
    const auto found = connections_.find(peer);
    if (found == connections_.end()) return;
    --all_;
    if (--found->second == 0) connections_.erase(found);
  }

 private:
  std::map<std::string, unsigned> connections_;
  unsigned all_ = 0;  // at most kConnectionsMax
};

class Server final : public HttpServer {
 public:
  Server(int port, size_t body_bytes_max, Handler handler)
      : port_(port), body_bytes_max_(body_bytes_max), handler_(std::move(handler)) {}
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() override {
    if (daemon_ == nullptr) return;
    std::set<std::shared_ptr<Exchange>> open;
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
      open = open_;
    }
    for (const auto& exchange : open) {
      exchange->Reply(Unavailable());
      exchange->EndStream();
    }
    WaitUntilAnswered();
    MHD_stop_daemon(daemon_);  // calls Completed for each that is left
  }

  int port() const override { return port_; }

  absl::Status Run(const HttpListen& listen, UniqueFd socket) {
    std::vector<MHD_OptionItem> options = {
        {MHD_OPTION_LISTEN_SOCKET, socket.get(), nullptr},
        {MHD_OPTION_CONNECTION_LIMIT, kConnectionsMax, nullptr},
        {MHD_OPTION_CONNECTION_TIMEOUT, kSilenceSecondsMax, nullptr}};
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME;
    TlsFiles files;  // copied by the library
    if (IsEncrypted(listen)) {
      flags |= MHD_USE_TLS;
      ASSIGN_OR_RETURN(files,
                       ReadTlsFiles({listen.tls_cert, listen.tls_key, listen.tls_ca}, absl::Now()));
      options.push_back({MHD_OPTION_HTTPS_MEM_CERT, 0, files.cert.data()});
      options.push_back({MHD_OPTION_HTTPS_MEM_KEY, 0, files.key.data()});
      options.push_back({MHD_OPTION_HTTPS_MEM_TRUST, 0, files.ca.data()});
    }
    options.push_back({MHD_OPTION_END, 0, nullptr});
    daemon_ = MHD_start_daemon(flags, 0, &Server::Admit, this, &Server::Handle, this,
                               MHD_OPTION_NOTIFY_CONNECTION, &Server::Noted, this,
                               MHD_OPTION_NOTIFY_COMPLETED, &Server::Completed, this,
                               MHD_OPTION_ARRAY, options.data(), MHD_OPTION_END);
    if (daemon_ == nullptr) {
      return absl::InvalidArgumentError(
          IsEncrypted(listen) ? "the TLS files are no certificate, key and authority that fit"
                              : "the server does not start");
    }
    socket.Release();  // the daemon closes it
    return absl::OkStatus();
  }

 private:
  // The library keeps this for us with each request.
  struct Held {
    std::shared_ptr<Exchange> exchange;
    std::optional<HttpRequest> incomplete;  // its body is still to come
  };

  // The library sends answers on its own thread, and none once it is stopped. Who does not read his
  // is not waited for.
  void WaitUntilAnswered() {
    constexpr absl::Duration kMost = absl::Milliseconds(250);
    absl::MutexLock lock(&mutex_);
    const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return open_.empty(); };
    mutex_.AwaitWithTimeout(absl::Condition(&none), kMost);
  }

  static MHD_Result Handle(void* self, MHD_Connection* connection, const char* url,
                           const char* method, const char* /*version*/, const char* data,
                           size_t* data_bytes, void** of_the_request) {
    auto* server = static_cast<Server*>(self);
    if (*of_the_request == nullptr) return server->Begin(connection, url, method, of_the_request);
    Held& held = *static_cast<Held*>(*of_the_request);
    if (*data_bytes == 0) return server->Complete(&held);
    server->AddBody({data, std::exchange(*data_bytes, 0)}, &held);
    return MHD_YES;
  }

  // A part of the body, which is ignored where nobody waits for it.
  void AddBody(std::string_view part, Held* held) const {
    if (!held->incomplete.has_value()) return;
    std::string& body = held->incomplete->body;
    if (part.size() <= body_bytes_max_ - body.size()) {
      body.append(part);
      return;
    }
    held->incomplete.reset();
    held->exchange->Reply(
        {.code = 413,
         .body = "the body has more than " + std::to_string(body_bytes_max_) + " bytes\n"});
  }

  MHD_Result Complete(Held* held) {
    if (held->incomplete.has_value()) {
      const HttpRequest request = *std::exchange(held->incomplete, std::nullopt);
      Ask(request, held->exchange);
    }
    return held->exchange->QueueOrRest();
  }

  void Ask(const HttpRequest& request, const std::shared_ptr<Exchange>& exchange) {
    handler_(request, [exchange](HttpResponse response) { exchange->Reply(std::move(response)); });
  }

  MHD_Result Begin(MHD_Connection* connection, const char* url, std::string_view method,
                   void** of_the_request) {
    if (!IsKnown(connection)) {
      return Queue(
          connection,
          {.code = 403, .body = "a certificate is needed that the authority of --tls-ca signed\n"});
    }
    if (method != MHD_HTTP_METHOD_GET && method != MHD_HTTP_METHOD_HEAD &&
        method != MHD_HTTP_METHOD_POST) {
      return Queue(connection, {.code = 405, .body = "GET, HEAD and POST are answered\n"});
    }
    auto exchange = std::make_shared<Exchange>(connection);
    auto* held = new Held{.exchange = exchange};
    *of_the_request = held;
    {
      absl::MutexLock lock(&mutex_);
      open_.insert(exchange);
      if (stopping_) exchange->Reply(Unavailable());
    }
    HttpRequest request = RequestOf(connection, method, url);
    const bool is_post = method == MHD_HTTP_METHOD_POST;  // called again when its body has come
    if (is_post && body_bytes_max_ > 0) {
      held->incomplete = std::move(request);
      return MHD_YES;
    }
    Ask(request, exchange);
    return is_post ? MHD_YES : exchange->QueueOrRest();
  }

  static MHD_Result Admit(void* self, const sockaddr* address, socklen_t /*bytes*/) {
    return static_cast<Server*>(self)->peers_.Admits(PeerOf(address)) ? MHD_YES : MHD_NO;
  }

  static void Noted(void* self, MHD_Connection* connection, void** /*of_the_connection*/,
                    MHD_ConnectionNotificationCode code) {
    const MHD_ConnectionInfo* info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    if (info == nullptr) return;
    Peers& peers = static_cast<Server*>(self)->peers_;
    const std::string peer = PeerOf(info->client_addr);
    code == MHD_CONNECTION_NOTIFY_STARTED ? peers.Add(peer) : peers.Remove(peer);
  }

  static void Completed(void* self, MHD_Connection*, void** of_the_request,
                        MHD_RequestTerminationCode) {
    if (*of_the_request == nullptr) return;
    auto* server = static_cast<Server*>(self);
    std::unique_ptr<Held> held(static_cast<Held*>(*of_the_request));
    *of_the_request = nullptr;
    // A handler that replies later finds that there is an answer already.
    held->exchange->Reply(Unavailable());
    held->exchange->CloseStream();
    absl::MutexLock lock(&server->mutex_);
    server->open_.erase(held->exchange);
  }

  const int port_;
  const size_t body_bytes_max_;
  const Handler handler_;
  MHD_Daemon* daemon_ = nullptr;
  Peers peers_;
  absl::Mutex mutex_;
  std::set<std::shared_ptr<Exchange>> open_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpListen& listen,
                                                              Handler handler) {
  RETURN_IF_ERROR(CheckOptions(listen));
  absl::StatusOr<UniqueFd> socket = ListenTcp(listen.address);
  if (!socket.ok()) {
    return absl::Status(socket.status().code(),
                        absl::StrCat(listen.option, ": cannot listen on ", listen.address, ": ",
                                     socket.status().message(), "; choose another address"));
  }
  auto server =
      std::make_unique<Server>(BoundPort(*socket), listen.body_bytes_max, std::move(handler));
  const absl::Status runs = server->Run(listen, *std::move(socket));
  if (!runs.ok()) {
    return absl::Status(runs.code(),
                        absl::StrCat(listen.option, ": ", listen.address, ": ", runs.message()));
  }
  return server;
}

}  // namespace terrace
