// SPDX-License-Identifier: Apache-2.0
#include "coordinator/web/web_page.h"

#include <memory>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "base/tcp.h"
#include "coordinator/web/assets.h"

namespace terrace {
namespace {

constexpr char kPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; frame-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'self'";

struct TypeOfEnding {
  std::string_view ending, content_type;
};
constexpr TypeOfEnding kTypes[] = {{".html", "text/html; charset=utf-8"},
                                   {".css", "text/css; charset=utf-8"},
                                   {".js", "text/javascript; charset=utf-8"},
                                   {".svg", "image/svg+xml"}};

std::string_view ContentType(std::string_view name) {
  for (const TypeOfEnding& type : kTypes) {
    if (name.ends_with(type.ending)) return type.content_type;
  }
  return "text/plain; charset=utf-8";
}

HttpResponse File(std::string_view path) {
  constexpr std::string_view kFolder = "/assets/";
  if (path == "/") path = "/assets/index.html";
  if (path.starts_with(kFolder)) {
    for (const Asset& asset : Assets()) {
      if (asset.name != path.substr(kFolder.size())) continue;
      return {.content_type = std::string(ContentType(asset.name)),
              .body = std::string(asset.content),
              .headers = {{"Content-Security-Policy", kPolicy}}};
    }
  }
  return {.code = 404, .body = "there is nothing here; the page is at /\n"};
}

HttpServer::Reply WithHeaders(HttpServer::Reply reply) {
  return [reply = std::move(reply)](HttpResponse response) {
    response.headers.emplace_back("Cache-Control", "no-store");
    response.headers.emplace_back("X-Content-Type-Options", "nosniff");
    response.headers.emplace_back("Referrer-Policy", "no-referrer");
    reply(std::move(response));
  };
}

}  // namespace

HttpServer::Handler WebPage(Control& control, WebPageOptions options) {
  auto api = std::make_shared<WebApi>(control, std::move(options.operator_token),
                                      std::move(options.changed));
  return [api, is_local = IsLoopback(options.listen)](const HttpRequest& request,
                                                      HttpServer::Reply answer) {
    const HttpServer::Reply reply = WithHeaders(std::move(answer));
    if (is_local && !IsLoopback(request.host)) {
      return reply({.code = 403,
                    .body = "this page is asked for by a name of this machine: localhost, "
                            "127.0.0.1 or [::1]\n"});
    }
    if (absl::StartsWith(request.path, "/api/")) return api->Answer(request, reply);
    if (request.method != "GET") return reply({.code = 405, .body = "GET is answered here\n"});
    reply(File(request.path));
  };
}

}  // namespace terrace
