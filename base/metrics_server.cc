// SPDX-License-Identifier: Apache-2.0
#include "base/metrics_server.h"

#include <gnutls/gnutls.h>
#include <microhttpd.h>

#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/tcp.h"

namespace terrace {
namespace {

constexpr int64_t kPemBytesMax = 1 << 20;
// Prometheus opens one, a browser six; the process needs its descriptors for other things.
constexpr unsigned kConnectionsMax = 256;
constexpr unsigned kConnectionsOfOnePeerMax = 128;
constexpr unsigned kSilenceSecondsMax = 10;
constexpr char kContentType[] = "text/plain; version=0.0.4; charset=utf-8";

bool IsEncrypted(const MetricsListen& listen) {
  return !listen.insecure && !listen.tls_cert.empty() && !IsLoopback(listen.address);
}

absl::Status CheckOptions(const MetricsListen& listen) {
  const int files = !listen.tls_cert.empty() + !listen.tls_key.empty() + !listen.tls_ca.empty();
  if (IsLoopback(listen.address) || listen.insecure || files == 3) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--metrics-listen: ", listen.address,
      " can be reached from other machines, so it needs --tls-cert, --tls-key and --tls-ca; "
      "--metrics-insecure allows it without, for networks where everybody may read metrics"));
}

MHD_Result Answer(MHD_Connection* connection, unsigned code, std::string_view body) {
  MHD_Response* response = MHD_create_response_from_buffer(
      body.size(), const_cast<char*>(body.data()), MHD_RESPMEM_MUST_COPY);
  if (response == nullptr) return MHD_NO;
  MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, kContentType);
  const MHD_Result queued = MHD_queue_response(connection, code, response);
  MHD_destroy_response(response);
  return queued;
}

// True of a client whose certificate our authority signed; of all where nothing is encrypted.
bool IsKnown(MHD_Connection* connection) {
  const MHD_ConnectionInfo* info =
      MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
  if (info == nullptr || info->tls_session == nullptr) return true;
  unsigned problems = 0;
  const int failed = gnutls_certificate_verify_peers2(
      static_cast<gnutls_session_t>(info->tls_session), &problems);
  return failed == GNUTLS_E_SUCCESS && problems == 0;
}

class Server final : public MetricsServer {
 public:
  Server(int port, Text text) : port_(port), text_(std::move(text)) {}
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() override {
    if (daemon_ != nullptr) MHD_stop_daemon(daemon_);
  }

  int port() const override { return port_; }

  absl::Status Run(const MetricsListen& listen, UniqueFd socket) {
    std::vector<MHD_OptionItem> options = {
        {MHD_OPTION_LISTEN_SOCKET, socket.get(), nullptr},
        {MHD_OPTION_CONNECTION_LIMIT, kConnectionsMax, nullptr},
        {MHD_OPTION_PER_IP_CONNECTION_LIMIT, kConnectionsOfOnePeerMax, nullptr},
        {MHD_OPTION_CONNECTION_TIMEOUT, kSilenceSecondsMax, nullptr}};
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD;
    std::string cert, key, ca;  // copied by the library
    if (IsEncrypted(listen)) {
      flags |= MHD_USE_TLS;
      ASSIGN_OR_RETURN(cert, ReadTextFile(listen.tls_cert, kPemBytesMax));
      ASSIGN_OR_RETURN(key, ReadTextFile(listen.tls_key, kPemBytesMax));
      ASSIGN_OR_RETURN(ca, ReadTextFile(listen.tls_ca, kPemBytesMax));
      options.push_back({MHD_OPTION_HTTPS_MEM_CERT, 0, cert.data()});
      options.push_back({MHD_OPTION_HTTPS_MEM_KEY, 0, key.data()});
      options.push_back({MHD_OPTION_HTTPS_MEM_TRUST, 0, ca.data()});
    }
    options.push_back({MHD_OPTION_END, 0, nullptr});
    daemon_ = MHD_start_daemon(flags, 0, nullptr, nullptr, &Server::Handle, this,
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
  static MHD_Result Handle(void* self, MHD_Connection* connection, const char* url,
                           const char* method, const char* /*version*/, const char* /*data*/,
                           size_t* data_bytes, void** /*of_the_request*/) {
    const std::string_view verb = method;
    *data_bytes = 0;  // what a client sends along is ignored
    if (!IsKnown(connection)) {
      return Answer(connection, MHD_HTTP_FORBIDDEN,
                    "a certificate is needed that the authority of --tls-ca signed\n");
    }
    if (verb != MHD_HTTP_METHOD_GET && verb != MHD_HTTP_METHOD_HEAD) {
      return Answer(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET /metrics\n");
    }
    if (std::string_view(url) != "/metrics") {
      return Answer(connection, MHD_HTTP_NOT_FOUND, "GET /metrics\n");
    }
    return Answer(connection, MHD_HTTP_OK, static_cast<Server*>(self)->text_());
  }

  const int port_;
  const Text text_;
  MHD_Daemon* daemon_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const MetricsListen& listen,
                                                                    Text text) {
  RETURN_IF_ERROR(CheckOptions(listen));
  absl::StatusOr<UniqueFd> socket = ListenTcp(listen.address);
  if (!socket.ok()) {
    return absl::Status(socket.status().code(),
                        absl::StrCat("--metrics-listen: cannot listen on ", listen.address, ": ",
                                     socket.status().message(), "; choose another address"));
  }
  auto server = std::make_unique<Server>(BoundPort(*socket), std::move(text));
  const absl::Status runs = server->Run(listen, *std::move(socket));
  if (!runs.ok()) {
    return absl::Status(runs.code(), absl::StrCat("--metrics-listen: ", listen.address, ": ",
                                                  runs.message()));
  }
  return server;
}

}  // namespace terrace
