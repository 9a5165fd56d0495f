// SPDX-License-Identifier: Apache-2.0
#include "base/http/metrics_server.h"

#include <utility>

namespace terrace {
namespace {

HttpResponse Answer(const HttpRequest& request, const MetricsText& text) {
  if (request.path != "/metrics") return {.code = 404, .body = "GET /metrics\n"};
  if (request.method != "GET") return {.code = 405, .body = "GET /metrics\n"};
  return {.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = text()};
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> ServeMetrics(HttpListen listen, MetricsText text) {
  listen.option = "--metrics-listen";
  listen.insecure_option = "--metrics-insecure";
  listen.readers = "everybody may read metrics";
  return HttpServer::Start(
      listen, [text = std::move(text)](const HttpRequest& request, const HttpServer::Reply& reply) {
        reply(Answer(request, text));
      });
}

}  // namespace terrace
