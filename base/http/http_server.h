// Serves HTTP/1.1 for people and programs that ask this process: /metrics, the web page,
// completions.
//
// Connections wait in epoll and hold no thread, so that those that never speak keep nobody waiting;
// each is closed after ten silent seconds, and their number is bounded. A peer gets another one
// only while more are free than it has, so that several greedy ones leave some to others. A
// request whose answer takes a while (a long poll) holds no thread either.
//
// Off loopback it is HTTPS for clients with a certificate that `tls_ca` signed, unless `insecure`
// is given.
//
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/http/http_stream.h"

namespace terrace {

struct HttpListen {
  std::string option;           // that gave the address, for messages: "--metrics-listen"
  std::string insecure_option;  // that allows no TLS, and what that means: "--metrics-insecure"
  std::string readers;          // who may read then: "everybody may read metrics"
  std::string address;          // host:port; port 0 takes a free one
  bool insecure = false;        // plain HTTP also where other machines reach the address
  std::string tls_cert;         // PEM files: all three or none
  std::string tls_key;
  std::string tls_ca;
  size_t body_bytes_max = 0;  // of a POST, longer ones get 413; 0: bodies are ignored
};

struct HttpRequest {
  std::string method;  // "GET" (also of HEAD), "POST"
  std::string path;    // decoded, without the query
  std::map<std::string, std::string, std::less<>> query;
  std::string host;  // these are headers; "" where one is absent
  std::string authorization;
  std::string accept;
  std::string body;
};

struct HttpResponse {
  int code = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;
  // Where there is one, the body is what is written to it until it ends; with the server it ends.
  std::shared_ptr<HttpStream> stream;
};

class HttpServer {
 public:
  // Answers one request; may be called once, from any thread, also after the server has gone.
  using Reply = std::function<void(HttpResponse)>;
  // Called on the server's thread, which it must not hold: what takes a while replies later. Other
  // methods than GET, HEAD and POST do not get here. A POST comes when all of its body has, where
  // bodies are not ignored.
  using Handler = std::function<void(const HttpRequest&, Reply)>;

  // Listens until it is destroyed; then requests without an answer get 503. INVALID_ARGUMENT where
  // other machines reach the address and neither TLS nor `insecure` is given, UNAVAILABLE when it
  // cannot be had.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpListen& listen,
                                                           Handler handler);
  virtual ~HttpServer() = default;

  virtual int port() const = 0;
};

}  // namespace terrace
