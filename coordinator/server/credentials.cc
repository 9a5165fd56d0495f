// SPDX-License-Identifier: Apache-2.0
#include "coordinator/server/credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <sys/stat.h>

#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/tcp.h"
#include "base/tls/files.h"
#include "base/tls/tokens.h"
#include "base/utf8.h"

namespace terrace {

struct ServerTls::State {
  State(TlsFiles its_paths, std::string its_tokens, Gatekeeper& its_gate)
      : paths(std::move(its_paths)), tokens_path(std::move(its_tokens)), gate(its_gate) {}

  const TlsFiles paths;
  const std::string tokens_path;  // empty: there are none
  Gatekeeper& gate;
  std::string stamp;  // of the files as they were read; used by who calls Reload
  absl::Mutex mutex;
  TlsFiles files ABSL_GUARDED_BY(mutex);
  bool is_new ABSL_GUARDED_BY(mutex) = true;  // not yet given to gRPC

  // Tells the files apart from others at their paths.
  std::string StampOfFiles() const {
    std::string text;
    for (const std::string& path : {paths.cert, paths.key, paths.ca, tokens_path}) {
      struct stat status {};
      if (path.empty() || stat(path.c_str(), &status) != 0) continue;
      absl::StrAppend(&text, path, " ", status.st_ino, " ", status.st_size, " ",
                      status.st_mtim.tv_sec, ".", status.st_mtim.tv_nsec, "\n");
    }
    return text;
  }

  // What gRPC calls: at each handshake, and at the beginning of each call.
  static grpc_ssl_certificate_config_reload_status Fetch(
      void* state, grpc_ssl_server_certificate_config** config);
  static void Process(void* state, grpc_auth_context* context, const grpc_metadata* metadata,
                      size_t count, grpc_process_auth_metadata_done_cb done, void* user_data);
};

namespace {

constexpr int64_t kTokenFileBytesMax = 1 << 20;

std::string_view TextOf(const grpc_slice& slice) {
  return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice)};
}

std::string PropertyOf(const grpc_auth_context* context, const char* name) {
  grpc_auth_property_iterator values = grpc_auth_context_find_properties_by_name(context, name);
  const grpc_auth_property* value = grpc_auth_property_iterator_next(&values);
  return value == nullptr ? "" : std::string(value->value, value->value_length);
}

// gRPC's own class for these takes the files once. The C functions below it ask for them at each
// handshake.
class ReloadedCredentials final : public grpc::ServerCredentials {
 public:
  explicit ReloadedCredentials(grpc_server_credentials* credentials) : credentials_(credentials) {}
  ~ReloadedCredentials() override { grpc_server_credentials_release(credentials_); }

  // The gatekeeper is the processor.
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  grpc_server_credentials* const credentials_;
};

}  // namespace

absl::StatusOr<bool> IsSecure(const ServeOptions& options) {
  const int given = !options.tls_cert.empty() + !options.tls_key.empty() + !options.tls_ca.empty();
  if (given == 3) return true;
  if (!options.tokens.empty()) {
    return absl::InvalidArgumentError(
        "--tokens: a token that travels without TLS is anybody's; give --tls-cert, --tls-key and "
        "--tls-ca too");
  }
  if (given != 0) {
    return absl::InvalidArgumentError(
        "--tls-cert, --tls-key and --tls-ca go together: both sides prove who they are");
  }
  if (IsLoopback(options.listen) || options.insecure) return false;
  return absl::InvalidArgumentError(absl::StrCat(
      "--listen: ", options.listen,
      " can be reached from other machines, so it needs --tls-cert, --tls-key and --tls-ca; "
      "--insecure allows it without, for networks where everybody may run jobs"));
}

absl::StatusOr<std::unique_ptr<ServerTls>> ServerTls::Make(const ServeOptions& options,
                                                           Gatekeeper& gate) {
  std::unique_ptr<ServerTls> tls(new ServerTls(std::make_unique<State>(
      TlsFiles{.cert = options.tls_cert, .key = options.tls_key, .ca = options.tls_ca},
      options.tokens, gate)));
  if (gate.is_secure()) RETURN_IF_ERROR(tls->Reload());
  return tls;
}

ServerTls::ServerTls(std::unique_ptr<State> state) : state_(std::move(state)) {}
ServerTls::~ServerTls() = default;

bool ServerTls::HaveFilesChanged() const {
  return state_->gate.is_secure() && state_->StampOfFiles() != state_->stamp;
}

absl::Status ServerTls::Reload() {
  state_->stamp = state_->StampOfFiles();  // before they are read: what changes meanwhile is seen
  ASSIGN_OR_RETURN(TlsFiles files, ReadTlsFiles(state_->paths, absl::Now()));
  Tokens tokens;
  if (!state_->tokens_path.empty()) {
    ASSIGN_OR_RETURN(const std::string text, ReadTextFile(state_->tokens_path, kTokenFileBytesMax));
    absl::StatusOr<Tokens> parsed = Tokens::Parse(text);
    if (!parsed.ok()) {
      return absl::Status(parsed.status().code(), absl::StrCat("--tokens: ", state_->tokens_path,
                                                               ": ", parsed.status().message()));
    }
    tokens = *std::move(parsed);
  }
  RETURN_IF_ERROR(state_->gate.SetAuthorities(files.ca));
  state_->gate.SetTokens(std::move(tokens));
  absl::MutexLock lock(&state_->mutex);
  state_->files = std::move(files);
  state_->is_new = true;
  return absl::OkStatus();
}

grpc_ssl_certificate_config_reload_status ServerTls::State::Fetch(
    void* state, grpc_ssl_server_certificate_config** config) {
  State& self = *static_cast<State*>(state);
  absl::MutexLock lock(&self.mutex);
  if (!self.is_new) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
  self.is_new = false;
  const grpc_ssl_pem_key_cert_pair pair = {.private_key = self.files.key.c_str(),
                                           .cert_chain = self.files.cert.c_str()};
  *config = grpc_ssl_server_certificate_config_create(self.files.ca.c_str(), &pair, 1);
  return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
}

// Before the message of the call is read.
void ServerTls::State::Process(void* state, grpc_auth_context* context,
                               const grpc_metadata* metadata, size_t count,
                               grpc_process_auth_metadata_done_cb done, void* user_data) {
  State& self = *static_cast<State*>(state);
  std::string_view path, authorization;
  for (size_t i = 0; i < count; ++i) {
    if (TextOf(metadata[i].key) == ":path") path = TextOf(metadata[i].value);
    if (TextOf(metadata[i].key) == kAuthorizationKey) authorization = TextOf(metadata[i].value);
  }
  const Shown shown{.certificate = PropertyOf(context, GRPC_X509_PEM_CERT_PROPERTY_NAME),
                    .chain = PropertyOf(context, GRPC_X509_PEM_CERT_CHAIN_PROPERTY_NAME),
                    .authorization = std::string(authorization),
                    .peer = {}};
  const absl::Status status = self.gate.Admit(path, shown, absl::Now());
  done(user_data, nullptr, 0, nullptr, 0, static_cast<grpc_status_code>(status.code()),
       CleanText(Std(status.message())).c_str());
}

std::shared_ptr<grpc::ServerCredentials> ServerTls::Credentials() const {
  if (!state_->gate.is_secure()) return grpc::InsecureServerCredentials();
  // The certificates of clients are checked by the gatekeeper: what TLS refuses it does not
  // explain.
  grpc_server_credentials* const credentials = grpc_ssl_server_credentials_create_with_options(
      grpc_ssl_server_credentials_create_options_using_config_fetcher(
          GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_BUT_DONT_VERIFY, &State::Fetch, state_.get()));
  grpc_server_credentials_set_auth_metadata_processor(
      credentials, {.process = &State::Process, .destroy = [](void*) {}, .state = state_.get()});
  return std::make_shared<ReloadedCredentials>(credentials);
}

}  // namespace terrace
